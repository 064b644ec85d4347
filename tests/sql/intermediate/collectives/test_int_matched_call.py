"""int_matched_call: the same collective on every rank, or why it is not compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.tables import Row, run_model


@dataclass
class Ranks:
    """Calls of ranks 0, 1, ... in one matched step, each given as category/kind, with members '0,1' by
    default."""

    calls: list[list[str]]
    recording: str | None = "r"
    ranks: int | None = None
    devices: int | None = None
    world: int | None = None
    members: str | None = "0,1"
    size: int = 2
    match: list[int | None] = field(default_factory=lambda: [0, 0])
    step: int | None = 0
    nelems: list[tuple[int | None, int | None]] = field(default_factory=lambda: [(None, None), (None, None)])
    where: dict[tuple[int, int], str] = field(default_factory=dict)
    half: bool = False

    def tables(self) -> dict[str, list[Row]]:
        """What the model reads."""
        made: dict[str, list[Row]] = {
            "int_collective": [],
            "int_recording": [],
            "int_step_match": [],
            "int_communicator": [],
        }
        count = len(self.calls)
        for rank, calls in enumerate(self.calls):
            trace = {"trace_id": f"t{rank}"}
            world = {
                "ranks": self.ranks or count,
                "devices": self.devices or count,
                "world_size": self.world or count,
            }
            made["int_recording"].append(trace | {"rank": rank, "recording": self.recording} | world)
            made["int_step_match"].append(trace | {"step": 0, "match_id": self.match[rank]})
            for number, word in enumerate(calls):
                category, _, kind = word.partition("/")
                call: dict[str, Any] = {
                    "activity_id": number, "step": self.step, "category": category,
                    "subcategory": kind or None, "start_ns": number,
                    "is_half": self.half, "part": self.where.get((rank, number), "after_moe"),
                }  # fmt: skip
                made["int_collective"].append(trace | call)
                talk = {
                    "members": self.members,
                    "communicator": self.members,
                    "group_size": self.size if self.members else None,
                }
                sent = dict(zip(("in_msg_nelems", "out_msg_nelems"), self.nelems[rank], strict=True))
                made["int_communicator"].append(trace | {"activity_id": number} | talk | sent)
        return made

    def refusals(self) -> set[tuple[Any, ...]]:
        """Each refusal with the first call at which ranks differ."""
        return set(run_model("int_matched_call", self.tables(), "refusal, refused_call"))


AR, AG = "allreduce/nccl", "collective/all_gather"


def test_calls_are_numbered_by_order_and_match() -> None:
    """The n-th of a communicator on one rank is the n-th on the other."""
    found = run_model(
        "int_matched_call", Ranks([[AR, AG, AR], [AR, AG, AR]]).tables(), "rank, activity_id, call, refusal"
    )
    assert found == [(rank, n, n, None) for rank in (0, 1) for n in range(3)]


def test_kinds_in_which_ranks_need_not_wait_are_refused() -> None:
    """Broadcast, reduce, send and receive, what a name does not tell, an all-to-all's preparation, a second
    half; the rest is compared."""
    for kind in (
        "collective/broadcast",
        "collective/reduce",
        "collective/generic",
        "collective/gather",
        "p2p/send_recv",
        "all_to_all/layout",
    ):
        assert Ranks([[kind], [kind]]).refusals() == {("kind", None)}, kind
    assert Ranks([[AR], [AR]], half=True).refusals() == {("kind", None)}
    for kind in (AR, AG, "collective/reduce_scatter", "collective/barrier", "allreduce/custom"):
        assert Ranks([[kind], [kind]]).refusals() == {(None, None)}, kind


def test_kinds_that_are_refused_do_not_disturb_the_order() -> None:
    """Ranks may send and receive different numbers of messages between the same all-reduces."""
    found = Ranks([[AR, "p2p/send_recv", AR], [AR, AR]]).refusals()
    assert found == {(None, None), ("kind", None)}


def test_different_counts_are_refused_with_the_first_position_that_differs() -> None:
    """A missing call shows where the places of the calls part, or at the end."""
    where = {(0, 0): "a", (0, 1): "b", (0, 2): "c", (1, 0): "a", (1, 1): "c"}
    assert Ranks([[AR, AR, AR], [AR, AR]], where=where).refusals() == {("counts_differ", 1)}
    assert Ranks([[AR, AR, AR], [AR, AR]]).refusals() == {("counts_differ", 2)}


def test_another_order_of_kinds_is_refused() -> None:
    """An all-gather beside an all-reduce is not the same call."""
    assert Ranks([[AR, AR, AG], [AR, AG, AR]]).refusals() == {("order_differs", 1)}


def test_an_all_to_all_is_compared_only_if_ranks_are_shown_to_send_the_same() -> None:
    """Equal numbers of elements in and out on every rank; unknown sizes are refused as uneven ones are."""
    word = "all_to_all/nccl"
    assert Ranks([[word], [word]], nelems=[(8, 8), (8, 8)]).refusals() == {(None, None)}
    assert Ranks([[word], [word]], nelems=[(8, 8), (6, 6)]).refusals() == {("uneven", None)}
    assert Ranks([[word], [word]], nelems=[(8, 6), (8, 10)]).refusals() == {("uneven", None)}
    assert Ranks([[word], [word]]).refusals() == {("uneven", None)}


def test_what_cannot_be_matched_says_why() -> None:
    """No step, one rank, labels that do not tell ranks apart, unknown groups, ranks or steps that are
    missing."""
    assert Ranks([[AR], [AR]], step=None).refusals() == {("no_step", None)}
    assert Ranks([[AR]], match=[0]).refusals() == {("one_rank", None)}
    assert Ranks([[AR]], match=[0], world=8, size=8).refusals() == {("one_rank", None)}
    assert Ranks([[AR], [AR]], recording=None).refusals() == {("ranks_unknown", None)}
    assert Ranks([[AR], [AR]], members=None).refusals() == {("groups_unknown", None)}
    assert Ranks([[AR], [AR]], match=[None, None]).refusals() == {("no_match", None)}
    assert Ranks([[AR], [AR]], match=[0, 1]).refusals() == {("no_match", None)}
    assert Ranks([[AR], [AR]], size=4, world=4).refusals() == {("ranks_missing", None)}
