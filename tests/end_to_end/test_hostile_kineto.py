"""Kineto input that fights back, through `stepledger run`: one row is one case, and a good trace goes through
beside them all."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline import duck
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from pipeline.sources.names import as_text
from tests.support.builders import ALL_REDUCE, DECODE, GEMM, MARLIN_MOE, StepBuilder, header, trace_json
from tests.support.homes import command, rank_trace, reason_in
from tests.support.kineto_reading import BROKEN, kernel_text

GOOD = "good-run"
LIMIT = 20_000_000
"""Bytes of text that the refused files may have, so that a small bomb is one."""

_steps = StepBuilder()
for _number in range(4):
    _steps.step([(GEMM, 20_000), (ALL_REDUCE, 30_000 + _number), (MARLIN_MOE, 25_000)], DECODE)
TEXTS = [json.dumps(event).encode() for event in _steps.events]
HEAD, TAIL = trace_json([], header(0, 1)).split(b"[\n\n]")
KERNELS = 12
DEEP = "[" * 10**6 + "]" * 10**6


def trace(*odd: bytes, head: bytes = HEAD, tail: bytes = TAIL) -> bytes:
    """A good trace of 12 kernels with odd events in its middle."""
    return head + b"[\n" + b",\n".join([*TEXTS[:10], *odd, *TEXTS[10:]]) + b"\n]" + tail


WHOLE = trace()
NOISE = b"".join(sha256(b"%d" % n).hexdigest().encode() for n in range(9000))
"""More than a block of zstd, which is read whole or not at all."""
IN_LAST_LAUNCH = WHOLE.index(TEXTS[-2]) + 20
AFTER_AN_EVENT = WHOLE.index(TEXTS[-1]) - 1
OLD = trace(
    head=b'{"schemaVersion": 1, "traceEvents": ',
    tail=b',\n"baseTimeNanoseconds": 1790857026000000000,\n"traceName": "t"}',
)
BARE = trace(head=b"", tail=b"")


def rank_texts(pid: int) -> list[bytes]:
    """The good trace's events as another process writes them."""
    return [text.replace(b'"pid": 1000', b'"pid": %d' % pid) for text in TEXTS]


def odd(
    more: str = "", *, ts: str = "5000.001", dur: str = "2.5", args: str = '"device": 0, "stream": 8'
) -> bytes:
    """A kernel far after the others, on a stream of its own."""
    return kernel_text("odd", more, ts=ts, dur=dur, args=args)


def gz(data: bytes) -> bytes:
    """As one gzip member."""
    return gzip.compress(data, mtime=0)


def zst(data: bytes) -> bytes:
    """As one zstd frame."""
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


Maker = Callable[[Path], object]


def holds(data: bytes) -> Maker:
    """A file of these bytes."""
    return lambda path: path.write_bytes(data)


@dataclass(frozen=True)
class Kept:
    """A file that is read: what its trace must show. A truncated file is a run of its own, for its verdict;
    the others share one."""

    make: Maker
    kernels: int = KERNELS
    issues: dict[str, int] = field(default_factory=dict)
    is_truncated: bool = False
    name: str | None = None
    run: str | None = None


def cut(data: bytes, kernels: int = KERNELS, **issues: int) -> Kept:
    """A truncated file."""
    return Kept(holds(data), kernels, {"truncated_file": 1, **issues}, is_truncated=True)


KEPT = {
    "cut in an event": cut(WHOLE[:IN_LAST_LAUNCH], KERNELS - 1),
    "truncated after an event": cut(WHOLE[:AFTER_AN_EVENT], KERNELS - 1),
    "truncated after the last event": cut(WHOLE[: WHOLE.index(TEXTS[-1]) + len(TEXTS[-1])]),
    "truncated after the events": cut(HEAD + b"[" + b",".join(TEXTS) + b"]", unreadable_header=1),
    "cut in the metadata": cut(WHOLE[:-8], unreadable_header=1),
    "cut before its base time": cut(OLD[: OLD.index(TEXTS[-1])], KERNELS - 1, no_epoch=1),
    "cut bare array": cut(BARE[: BARE.index(TEXTS[-1]) + 9], KERNELS - 1, no_epoch=1),
    "cut, then zeros": cut(WHOLE[:IN_LAST_LAUNCH] + b"\0" * 4096, KERNELS - 1),
    "cut gz": cut(gz(WHOLE[:IN_LAST_LAUNCH])[:-8], KERNELS - 1),
    "gz without its checksum": cut(gz(WHOLE)[:-8]),
    "cut zst": cut(zst(trace(tail=b', "noise": "' + NOISE + b'"}'))[:-4], unreadable_header=1),
    "gz of a truncated file": cut(gz(WHOLE[:IN_LAST_LAUNCH]), KERNELS - 1),
    "one document in two gz members": Kept(holds(gz(WHOLE[:999]) + gz(WHOLE[999:]))),
    "merged with a prefix per rank": Kept(
        holds(
            trace(tail=TAIL)
            .replace(b'"pid": 1000', b'"pid": "[TP00] 1000"')
            .replace(b'"pid": 0', b'"pid": "[TP00] 0"')
        )
    ),
    "CRLF": Kept(holds(WHOLE.replace(b"\n", b"\r\n"))),
    "BOM": Kept(holds(b"\xef\xbb\xbf" + WHOLE)),
    "NaN in an argument that is not read": Kept(
        holds(trace(odd(args='"device": 0, "stream": 8, "occupancy": NaN'))), KERNELS + 1
    ),
    "bare word": Kept(
        holds(trace(odd(args='"device": 0, "stream": 8, "blocks per SM": N/A'))),
        KERNELS,
        {"unreadable_gpu_event": 1},
    ),
    "Infinity as a stream": Kept(
        holds(trace(odd(args='"device": 0, "stream": Infinity'))), KERNELS + 1, {"bad_value": 1}
    ),
    "bad UTF-8": Kept(
        holds(trace(odd('"note": "@"').replace(b"@", b"\xff"))), KERNELS + 1, {"repaired_text": 1}
    ),
    "control character": Kept(holds(trace(odd('"note": "\x07"'))), KERNELS + 1, {"repaired_text": 1}),
    "unescaped quotes in a python frame": Kept(
        holds(trace(BROKEN, odd())), KERNELS + 1, {"unreadable_event": 1}
    ),
    "duplicate keys": Kept(holds(trace(odd('"dur": 3.5'))), KERNELS + 1),
    "time as text": Kept(holds(trace(odd(ts='"5000.001"', dur='"2.5"'))), KERNELS + 1),
    "time 0 without duration": Kept(holds(trace(odd(ts="0", dur="0"))), KERNELS, {"zero_timestamp": 1}),
    "duration 0": Kept(holds(trace(odd(dur="0"))), KERNELS + 1),
    "negative duration": Kept(holds(trace(odd(dur="-1"))), KERNELS, {"negative_duration": 1}),
    "duration beyond 64 bits": Kept(
        holds(trace(odd(dur="1e30"))), KERNELS, {"bad_value": 1, "no_duration": 1}
    ),
    "no duration": Kept(holds(trace(odd().replace(b'"dur": 2.5, ', b""))), KERNELS, {"no_duration": 1}),
    "NaN as duration": Kept(holds(trace(odd(dur="NaN"))), KERNELS, {"bad_value": 1, "no_duration": 1}),
    "duplicate event": Kept(holds(trace(odd(), odd())), KERNELS + 1, {"duplicate_event": 1}),
    "stream of 64 bits": Kept(holds(trace(odd(args=f'"device": 0, "stream": {2**64 - 1}'))), KERNELS + 1),
    "correlation beyond 64 bits": Kept(
        holds(trace(odd(args=f'"device": 0, "stream": 8, "correlation": {10**30}'))),
        KERNELS + 1,
        {"bad_value": 1},
    ),
    "deep nesting in an argument": Kept(
        holds(trace(odd(args=f'"device": 0, "stream": 8, "x": {DEEP}'))), KERNELS + 1
    ),
    "deep nesting that never ends": Kept(
        holds(trace(odd(args=f'"x": {"[" * 10**6}'))), KERNELS, {"unreadable_gpu_event": 1}
    ),
    "deep nesting that needs too much memory": Kept(
        holds(trace(odd(args='"grid": ' + '{"a":' * 10**6 + "1" + "}" * 10**6))),
        KERNELS,
        {"unreadable_gpu_event": 1},
    ),
    "deep nesting for an event": Kept(
        holds(trace(DEEP.encode(), odd())), KERNELS + 1, {"unreadable_event": 1}
    ),
    "name of 1 MB": Kept(
        holds(trace(kernel_text("n" * 10**6, args='"device": 0, "stream": 8'))), KERNELS + 1
    ),
    "file name with quotes": Kept(holds(WHOLE + b"\n" * 1), name='it\'s a "t".json'),
    "file name with a line break": Kept(holds(WHOLE + b"\n" * 2), name="a\nread: b.json into run c.json"),
    "file name with dots": Kept(holds(WHOLE + b"\n" * 3), name="a..b...json"),
    "file name of other alphabets": Kept(holds(WHOLE + b"\n" * 4), name="日本-\u202e.json"),
    "file name that is no text": Kept(holds(WHOLE + b"\n" * 5), name=os.fsdecode(b"a\xff.json")),
    "file name of 255 bytes": Kept(holds(WHOLE + b"\n" * 6), name="n" * 250 + ".json"),
    "run with a quote": Kept(holds(WHOLE), run="a'b; --"),
    "run of a device": Kept(holds(WHOLE), run="CON"),
    "run of 255 bytes": Kept(holds(WHOLE), run="r" * 255),
    "run without a safe letter": Kept(holds(WHOLE), run="日本"),
    "run with a line break": Kept(holds(WHOLE), run="a\nb"),
    "run that is no text": Kept(holds(WHOLE), run=os.fsdecode(b"r\xff")),
}


@dataclass(frozen=True)
class Refused:
    """A file that is not read: what the message must say of where, found, wanted and what to do."""

    make: Maker
    says: tuple[str, ...]
    name: str = "t-rank-0.json"


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _deep_fifo(path: Path) -> None:
    (path / "deep").mkdir(parents=True)
    os.mkfifo(path / "deep" / "t.json")


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path may have 108 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _link_out(path: Path) -> None:
    outside = path.parents[2] / "outside"
    outside.mkdir(exist_ok=True)
    path.symlink_to(rank_trace(outside / "secret.json", ranks=1))


def _link_to_folder_out(path: Path) -> None:
    outside = path.parents[2] / "outside"
    outside.mkdir(exist_ok=True)
    rank_trace(outside / "secret.json", ranks=1)
    path.symlink_to(outside)


def _closed(path: Path) -> None:
    path.write_bytes(WHOLE)
    path.chmod(0)


MERGED = (
    HEAD
    + b"["
    + b",".join(text for pair in zip(rank_texts(1000), rank_texts(2000), strict=True) for text in pair)
    + b"]"
    + TAIL
)
CUT_OFF = ("the end of the file", "copy or record it again")
SEVERAL = ("more data", "one JSON document", "one file per rank")
NO_FILE = ("the path", "which is not a regular file", "a trace file", "Name the trace files")
LINK = ("a symbolic link to", "the file itself", "stepledger ingest")

REFUSED = {
    "empty": Refused(
        holds(b""), ("start of the file", "found nothing", "wanted a trace", "Record with torch.profiler")
    ),
    "blank": Refused(holds(b" \r\n"), ("found nothing", "wanted a trace")),
    "empty gz": Refused(holds(gz(b"")), ("found nothing", "wanted a trace")),
    "cut before the events": Refused(
        holds(HEAD[:90]), ("byte 90", "before its events", "wanted traceEvents", "copy or record it again")
    ),
    "cut before a GPU event": Refused(
        holds(WHOLE[: WHOLE.index(TEXTS[2])]), ("traceEvents", "among 2 events", *CUT_OFF)
    ),
    "cut before any event": Refused(holds(HEAD + b"[\n"), ("traceEvents", "among 0 events", *CUT_OFF)),
    "cut gz of nothing": Refused(holds(gz(WHOLE)[:12]), ("found nothing",)),
    "cut gz before a GPU event": Refused(
        holds(gz(WHOLE[: WHOLE.index(TEXTS[2])])[:-8]), ("among 2 events", *CUT_OFF)
    ),
    "cut, and no device": Refused(
        holds(HEAD + b"[" + odd(args='"stream": 8').replace(b'"pid": 0', b'"pid": "x"') + b","),
        ("GPU activities of no known device", *CUT_OFF),
    ),
    "brackets only": Refused(
        holds(b"[" * 10**6), ("start of the file", "a JSON list", "wanted a chrome trace", "torch.profiler")
    ),
    "no JSON": Refused(holds(b"hello"), ("start of the file", "which is not JSON", "wanted a chrome trace")),
    "two documents in gz members": Refused(
        holds(gz(WHOLE) + gz(WHOLE)), ("after the end of traceEvents", *SEVERAL)
    ),
    "a document and a cut one": Refused(holds(WHOLE + WHOLE[:IN_LAST_LAUNCH]), SEVERAL),
    "a document and the beginning of one": Refused(holds(gz(WHOLE) + gz(WHOLE)[:-600]), SEVERAL),
    "a document in a cut one": Refused(holds(WHOLE[:IN_LAST_LAUNCH] + WHOLE), SEVERAL),
    "ranks merged without a prefix": Refused(
        holds(MERGED),
        ("traceEvents", "launches of processes [1000, 2000]", "12 correlation ids", "one file per rank"),
    ),
    "damaged gz": Refused(
        holds(gz(WHOLE)[:300] + b"\xff" * 40 + gz(WHOLE)[340:]),
        ("compressed byte", "damaged gzip data", "a whole gzip file", "gzip -t"),
    ),
    "wrong checksum": Refused(
        holds(gz(WHOLE)[:-8] + b"\1\2\3\4" + gz(WHOLE)[-4:]), ("damaged gzip data", "a whole gzip file")
    ),
    "gz, then something else": Refused(
        holds(gz(WHOLE) + b"hello"),
        ("compressed byte", "other bytes after the gzip data", "Copy the file again"),
    ),
    "bomb": Refused(
        holds(gz(b'{"traceEvents": [' + b" " * (LIMIT + 1))),
        (f"byte {LIMIT}", f"at most {LIMIT} bytes after decompression", "--max-bytes"),
    ),
    "bomb of brackets": Refused(
        holds(gz(b'{"traceEvents": [' + b"{" * (LIMIT + 1))), (f"at most {LIMIT} bytes", "--max-bytes")
    ),
    "pipe": Refused(_fifo, ("a pipe", *NO_FILE)),
    "pipe deep in a run": Refused(_deep_fifo, ("a pipe", *NO_FILE), name="deeper"),
    "pipe called run.toml": Refused(_fifo, ("a pipe", *NO_FILE), name="run.toml"),
    "pipe called as an export": Refused(_fifo, ("a pipe", *NO_FILE), name="t.sqlite"),
    "socket": Refused(_socket, ("a socket", *NO_FILE)),
    "link out of the inbox": Refused(_link_out, ("secret.json", *LINK)),
    "link to a folder outside": Refused(_link_to_folder_out, ("outside", *LINK), name="linked"),
    "link called run.toml": Refused(_link_out, ("secret.json", *LINK), name="run.toml"),
    "link to nowhere": Refused(lambda path: path.symlink_to("gone.json"), ("gone.json", *LINK)),
    "link to itself": Refused(lambda path: path.symlink_to(path.name), LINK),
    "bad file with a long name": Refused(holds(b"hello"), ("which is not JSON",), name="n" * 250 + ".json"),
    "bad file with a name that is no text": Refused(
        holds(b"hello"), ("which is not JSON",), name=os.fsdecode(b"b\xff.json")
    ),
    "bad file with a line break": Refused(holds(b"hello"), ("which is not JSON",), name="a\nread: b.json"),
    "no permission": Refused(
        _closed, ("opening it", "Permission denied", "a readable file", "Check its permissions")
    ),
}
WAITING = {
    "cut gz": holds(gz(WHOLE)[:-300]),
    "cut zst": holds(zst(WHOLE)[:-300]),
    "truncated JSON": holds(WHOLE[:IN_LAST_LAUNCH]),
    "cut metadata": holds(WHOLE[:-8]),
    "cut head": holds(HEAD[:40]),
    "empty": holds(b""),
}


def _age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)


def _fill(folder: Path, cases: dict[str, tuple[str, str, Maker]], *, still_for: float) -> Home:
    """A home with a good trace and one run per case: (run, file name, maker)."""
    home = Home(folder / "home")
    home.ensure()
    (home.inbox / GOOD).mkdir()
    _age(rank_trace(home.inbox / GOOD / "good-rank-0.json", ranks=1), still_for)
    for run, name, make in cases.values():
        (home.inbox / run).mkdir(exist_ok=True)
        make(home.inbox / run / name)
        for made in (home.inbox / run).rglob("*"):
            _age(made, still_for)
    return home


@dataclass(frozen=True)
class Done:
    """A home after `stepledger run`, and the output of the command."""

    home: Home
    process: subprocess.CompletedProcess[str]

    def reason(self, run: str) -> dict[str, str]:
        """The reason of the one file of a run that was quarantined."""
        return reason_in(self.home, run)


def _id(what: str) -> str:
    return what.replace(" ", "-").replace(",", "")


def _place(what: str) -> tuple[str, str]:
    """Run and file name of a case that is kept."""
    case = KEPT[what]
    return case.run or (_id(what) if case.is_truncated else "odd"), case.name or f"{_id(what)}-rank-0.json"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A home after a run over all files that can be read."""
    cases = {what: (*_place(what), case.make) for what, case in KEPT.items()}
    home = _fill(tmp_path_factory.mktemp("kept"), cases, still_for=120)
    return Done(home, command("--home", home.root, "run"))


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A home after a run over all files that cannot be read."""
    cases = {what: (_id(what), case.name, case.make) for what, case in REFUSED.items()}
    home = _fill(tmp_path_factory.mktemp("refused"), cases, still_for=120)
    return Done(home, command("--home", home.root, "run", "--max-bytes", str(LIMIT)))


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A home after a run over files that may still be arriving."""
    cases = {what: (_id(what), "t-rank-0.json", make) for what, make in WAITING.items()}
    home = _fill(tmp_path_factory.mktemp("waiting"), cases, still_for=20)
    return Done(home, command("--home", home.root, "run"))


def _verdicts(home: Home) -> dict[str, str]:
    with opened(home) as con:
        return dict(duck.rows(con, "SELECT run_id, verdict FROM runs"))


@pytest.mark.parametrize("what", KEPT)
def test_what_can_be_read_lands(kept: Done, what: str) -> None:
    """Every complete event is booked, everything else is an issue by name, and the file goes to the
    archive."""
    case, (run, name) = KEPT[what], _place(what)
    key = [kept.home.run_id_for(run), as_text(name)]
    with opened(kept.home) as con:
        ((trace_id, is_truncated),) = duck.rows(
            con, "SELECT trace_id, is_truncated FROM raw.trace WHERE run_id = $1 AND file_name = $2", key
        )
        key[1] = trace_id
        issues = duck.rows(
            con,
            (
                "SELECT code, sum(count)::BIGINT FROM raw.issue WHERE run_id = $1 AND trace_id = $2 GROUP BY "
                "code"
            ),
            key,
        )
        ((kernels,),) = duck.rows(
            con, "SELECT count(*) FROM raw.gpu_activity WHERE run_id = $1 AND trace_id = $2", key
        )
    assert (kernels, dict(issues), is_truncated) == (case.kernels, case.issues, case.is_truncated)
    assert (kept.home.archive / run / name).is_file()


@pytest.mark.parametrize("what", [what for what, case in KEPT.items() if case.is_truncated])
def test_a_cut_file_warns(kept: Done, what: str) -> None:
    """What is complete is worth a look, and the run says that it is not all."""
    assert _verdicts(kept.home)[_id(what)] == "warn"


def test_what_can_be_read_is_no_failure_of_a_trace(kept: Done) -> None:
    """GPU work without its time fails the checks of its run (5); no file was unreadable (3), and the good one
    is there."""
    assert kept.process.returncode == 5
    assert "quarantined" not in kept.process.stderr
    assert list(kept.home.inbox.iterdir()) == []
    assert _verdicts(kept.home)[GOOD] == "pass"


def test_names_do_not_write_lines_of_their_own(kept: Done) -> None:
    """A line break in a name is escaped in what the command says."""
    assert r"read: a\nread: b.json into run c.json into run odd" in kept.process.stderr.splitlines()


def _reads_everything(folder: Path) -> bool:
    path = folder / "closed"
    path.touch(mode=0)
    return os.access(path, os.R_OK)


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_read_is_quarantined_with_the_reason(refused: Done, tmp_path: Path, what: str) -> None:
    """The file itself, or the link and not its target, with a message on its substance; nothing of it is
    landed."""
    if what == "no permission" and _reads_everything(tmp_path):
        pytest.skip("this user may read everything")
    case, run = REFUSED[what], _id(what)
    reason = refused.reason(run)
    missing = [part for part in case.says if part not in reason["error"]]
    assert missing == [], reason["error"]
    assert os.path.lexists(refused.home.quarantine / run / case.name)
    assert run not in refused.home.run_ids()
    assert not (refused.home.inbox / run).exists()


def test_what_cannot_be_read_is_exit_code_3_and_the_good_trace_goes_through(refused: Done) -> None:
    """An error of one file does not affect others."""
    assert refused.process.returncode == 3
    assert _verdicts(refused.home)[GOOD] == "pass"
    assert list(refused.home.inbox.iterdir()) == []


def test_the_target_of_a_link_is_left_alone(refused: Done) -> None:
    """Neither moved nor read."""
    assert (refused.home.root / "outside" / "secret.json").is_file()
    assert list(refused.home.archive.rglob("secret.json")) == []
    with opened(refused.home) as con:
        assert duck.rows(con, "FROM raw.trace WHERE file_name = 'secret.json'") == []


@pytest.mark.parametrize("what", WAITING)
def test_a_truncated_file_waits_for_its_end(waiting: Done, what: str) -> None:
    """A copy may have stalled: the message says how long it is waited for."""
    assert (waiting.home.inbox / _id(what) / "t-rank-0.json").is_file()
    assert _id(what) not in waiting.home.run_ids()


def test_waiting_is_reported_and_not_a_failure(waiting: Done) -> None:
    """Exit code 0; the good trace does not wait."""
    assert waiting.process.returncode == 0
    messages = [
        line
        for line in waiting.process.stderr.splitlines()
        if line.startswith("left in the inbox: t-rank-0.json: ")
    ]
    assert len(messages) == len(WAITING)
    assert all("its complete events are read after 60 s" in line for line in messages)
    assert _verdicts(waiting.home) == {GOOD: "pass"}


def test_a_cut_file_that_is_named_is_read_at_once(home: Home, tmp_path: Path) -> None:
    """`ingest` does not wait for what the user points at."""
    (tmp_path / "t-rank-0.json").write_bytes(WHOLE[:IN_LAST_LAUNCH])
    done = command("--home", home.root, "ingest", tmp_path / "t-rank-0.json", "--run", "..")
    assert done.returncode == 0
    (run_id,) = home.run_ids()
    with opened(home) as con:
        assert duck.rows(con, "SELECT run_id, run_name, is_truncated FROM raw.trace") == [
            (run_id, "..", True)
        ]


def test_the_limit_can_be_raised_for_what_is_named(home: Home, tmp_path: Path) -> None:
    """The refusal names the option; with it the file is read."""
    path = rank_trace(tmp_path / "t-rank-0.json.gz", ranks=1)
    low = command("--home", home.root, "ingest", path, "--max-bytes", "1000")
    assert low.returncode == 3
    assert "at most 1000 bytes after decompression" in low.stderr
    assert "--max-bytes" in low.stderr
    assert command("--home", home.root, "ingest", path, "--max-bytes", "1000000").returncode == 0


def test_a_folder_that_cannot_be_opened_does_not_stop_the_others(home: Home, tmp_path: Path) -> None:
    """It cannot be moved either: it stays, with the reason, and the good trace goes through."""
    if _reads_everything(tmp_path):
        pytest.skip("this user may read everything")
    for run in (GOOD, "closed"):
        (home.inbox / run).mkdir()
        _age(rank_trace(home.inbox / run / "t-rank-0.json", ranks=1), 120)
    _age(home.inbox / "closed", 120)
    (home.inbox / "closed").chmod(0)
    done = command("--home", home.root, "run")
    (home.inbox / "closed").chmod(0o755)
    assert done.returncode == 3
    assert "left in the inbox: closed: closed: opening it: found Permission denied" in done.stderr
    assert _verdicts(home) == {GOOD: "pass"}


def test_a_link_inside_the_inbox_is_set_aside(home: Home) -> None:
    """What it points to is read itself, once."""
    (home.inbox / "run").mkdir()
    _age(rank_trace(home.inbox / "run" / "t-rank-0.json", ranks=1), 120)
    (home.inbox / "run" / "z-latest.json").symlink_to("t-rank-0.json")
    _age(home.inbox / "run" / "z-latest.json", 120)
    done = command("--home", home.root, "run")
    assert done.returncode == 0
    assert "archived: z-latest.json: a link to run/t-rank-0.json, which is read itself" in done.stderr
    assert list(home.inbox.iterdir()) == []
    with opened(home) as con:
        assert duck.rows(con, "SELECT file_name FROM raw.trace") == [("t-rank-0.json",)]
