"""Fields of file and process names."""

from __future__ import annotations

import pytest

from pipeline.sources.names import NameFields, as_text, coordinates, from_file_name

NAMES = {
    "gpu-3.cluster.local_1234.1759255878904894123.pt.trace.json.gz": NameFields(
        run="", host="gpu-3.cluster.local"
    ),
    "node7_99.1623143089861.pt.trace.json": NameFields(run="", host="node7"),
    "worker0.1623143089861.pt.trace.json.gz": NameFields(run="worker0"),
    "worker0.pt.trace.json": NameFields(run="worker0"),
    "vllm-ab12-rank-3.1759255878904894123.pt.trace.json.gz": NameFields(run="vllm-ab12", rank=3),
    "dp1_pp0_tp3_dcp0_ep7_rank11.1795968728139302582.pt.trace.json.gz": NameFields(
        run="", rank=11, dp=1, tp=3, pp=0, ep=7
    ),
    "mine_b1_dp0_pp0_tp1_dcp0_ep1_rank1.1795968728139302582.pt.trace.json.gz": NameFields(
        run="mine_b1", rank=1, dp=0, tp=1, pp=0, ep=1
    ),
    "rank5.1795968728139302582.pt.trace.json.gz": NameFields(run="", rank=5),
    "rank_0.1795968728139302582.pt.trace.json": NameFields(run="", rank=0),
    "1759255878.904894-TP-2.trace.json.gz": NameFields(run="", tp=2),
    "1759255878.904894-TP-2-DP-1-PP-0-EP-3.trace.json.gz": NameFields(run="", dp=1, tp=2, pp=0, ep=3),
    "1759255878.904894-TP-2-DECODE.trace.json.gz": NameFields(run="decode", tp=2),
    "qwen-1759255878.904894-TP-0-EP-1-prefill.trace.json.gz": NameFields(run="qwen-prefill", tp=0, ep=1),
    "merged-1759255878.904894.trace.json.gz": NameFields(run="merged"),
    "bench_batch1_input256_output32_decode.trace.json.gz": NameFields(
        run="bench_batch1_input256_output32-decode"
    ),
    "profile.json": NameFields(run="profile"),
    "profile_rank_2.json": NameFields(run="profile", rank=2),
    "lmdeploy3.json.gz": NameFields(run="lmdeploy3"),
    "trace_0.json": NameFields(run="trace_0"),
    "rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz": NameFields(run="", rank=34),
    "libkineto_activities_4711.json": NameFields(run="libkineto_activities"),
    "G_micro_rank0.pt.trace.json.zst": NameFields(run="G_micro", rank=0),
    "G_micro.csv": NameFields(run="G_micro"),
}


@pytest.mark.parametrize("name", NAMES)
def test_file_name_tells_rank_coordinates_host_and_run(name: str) -> None:
    """Every writer's file name gives its rank, coordinates and host; the run is what is left without rank and
    time."""
    assert from_file_name(name) == NAMES[name]


def test_ranks_of_one_capture_share_a_run() -> None:
    """Files that differ in rank and time only belong to one run."""
    runs = {
        from_file_name(f"cap_dp0_pp0_tp{r}_dcp0_ep{r}_rank{r}.17959687281393025{r}2.pt.trace.json.gz").run
        for r in range(8)
    }
    assert runs == {"cap"}


@pytest.mark.parametrize(
    "name", ["crank5.json", "rank5x.json", "frank_5_a.json", "rank20251209123456789.json"]
)
def test_rank_is_a_whole_field(name: str) -> None:
    """Letters around `rank<N>`, or a number that is too large, give no rank."""
    assert from_file_name(name).rank is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("VLLM::Worker_TP0_EP3", {"tp": 0, "ep": 3}),
        ("VLLM::Worker_DP1_TP2", {"dp": 1, "tp": 2}),
        ("sglang::scheduler_TP1", {"tp": 1}),
        ("TP00-DP01-PP00-EP00", {"tp": 0, "dp": 1, "pp": 0, "ep": 0}),
        ("python3", {}),
        ("HTTP2 server", {}),
    ],
)
def test_process_name_tells_coordinates(text: str, wanted: dict[str, int]) -> None:
    """A process name or merged prefix gives the coordinates that it spells."""
    assert coordinates(text) == wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("a.json", "a.json"), ("a\udcff.json", "a?.json".replace("?", "\ufffd")), ("日本", "日本")],
)
def test_a_name_becomes_text(name: str, wanted: str) -> None:
    """Bytes of a name that are not UTF-8 are replaced: neither a table nor JSON can hold them."""
    assert as_text(name) == wanted
