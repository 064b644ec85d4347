"""Read one Kineto trace: find the events, stage them stretch by stretch, land the raw tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from pipeline import duck
from pipeline.errors import TraceError
from pipeline.sources.issues import IssueBook
from pipeline.sources.job import ReadJob
from pipeline.sources.kineto import exact, header, tables
from pipeline.sources.kineto.bytestream import blocks
from pipeline.sources.kineto.feed import Feed, find_array_end, split
from pipeline.sources.kineto.stage import Stage

STRETCH_BYTES = 8 << 20
STRETCHES_AT_ONCE = 4
_HEAD_LIMIT = 64 << 20
_EVENT_LIMIT = 256 << 20


def read_kineto(job: ReadJob, stretch_bytes: int = STRETCH_BYTES) -> None:
    """Write the raw tables of `job.path` into `job.out`.

    Memory use is bounded for a file of any size. Raises TraceError for a file that cannot be read or that
    holds no GPU activity, UnfinishedFile for a truncated one; `job.salvage` keeps its complete events.
    """
    book = IssueBook()
    with (
        duck.working(job.work / "spill", threads=job.threads, memory_limit=job.memory_limit) as con,
        _within(job),
    ):
        reading = _Reading(job, Stage(con, job.work, book), stretch_bytes)
        head, tail = reading.run()
        found = header.parse(head, tail, job.file_name, book)
        if found.is_truncated and not job.salvage:
            raise header.unfinished(job.file_name, reading.end, "in the metadata after traceEvents")
        found.is_truncated = found.is_truncated or reading.is_truncated
        if found.is_truncated:
            book.add("truncated_file", "file", example=f"ends at byte {reading.end} of the JSON text")
        tables.land(con, job, reading.stage.glob(), found, book)


@contextmanager
def _within(job: ReadJob) -> Iterator[None]:
    """A file that needs too much memory is refused, and the next one is read."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise TraceError(
            job.file_name,
            where="traceEvents",
            found=f"values that need more than {job.memory_limit} of memory",
            wanted="events of ordinary size",
            advice="The file may be damaged: record it again.",
        ) from error


class _Reading:
    """The walk over one file. It always continues from the start of an event, or from the array's end."""

    def __init__(self, job: ReadJob, stage: Stage, stretch_bytes: int) -> None:
        self._job, self.stage, self._stretch_bytes = job, stage, stretch_bytes
        self._feed = Feed(blocks(job.path, job.on_read, job.max_bytes), salvage=job.salvage)
        self._lacks_end = False
        self._at_once = STRETCHES_AT_ONCE

    @property
    def is_truncated(self) -> bool:
        """Does the file end before the end of its JSON text?"""
        return self._lacks_end or self._feed.is_truncated

    @property
    def end(self) -> int:
        """Bytes of JSON text that the file holds, once it has been read."""
        return self._feed.offset + len(self._feed.buffer)

    def run(self) -> tuple[bytes, bytes]:
        """Stage all events; returns the bytes before and after them (if truncated: the missing end)."""
        head = self._head()
        is_bare = head.removeprefix(b"\xef\xbb\xbf").strip() == b"["
        wanted = 0
        while True:
            self._feed.fill(max(wanted, self._stretch_bytes * self._at_once))
            buf = self._feed.buffer
            end = find_array_end(buf, is_bare=is_bare) if self._feed.is_at_end else None
            spans, rest = split(
                buf, len(buf) if end is None else end, self._stretch_bytes, is_last=end is not None
            )
            good = self._load(spans)
            if good == len(spans) and end is not None:
                return head, buf[end + 1 :]
            if good == len(spans) and not self._feed.is_at_end and spans:
                self._at_once = min(STRETCHES_AT_ONCE, self._at_once * 2)
                self._feed.drop(rest)
                wanted = 0
                continue
            self._at_once = 1
            start, until = spans[good] if good < len(spans) else (rest, len(buf))
            stop, is_array_end = self._exact(start, until)
            if is_array_end:
                return head, self._tail(stop + 1)
            if self._lacks_end:
                return head, b"" if is_bare else b"}"
            wanted = self._grown(len(buf) - start) if stop == start and not self._feed.is_at_end else 0
            self._feed.drop(stop)

    def _head(self) -> bytes:
        """The bytes up to and including the `[` of the events."""
        size = 1 << 16
        while True:
            self._feed.fill(size)
            text = self._feed.buffer
            body = text.removeprefix(b"\xef\xbb\xbf").lstrip()
            if body[:1] == b"[" and len(body) > 1 and (first := body[1:].lstrip()):
                if first[:1] not in (b"{", b"]"):
                    raise header.no_events(self._job.file_name, text)
                events_at = text.index(b"[") + 1
                break
            if body[:1] == b"{" and (match := header.EVENTS_KEY.search(text)):
                events_at = match.end()
                break
            if self._feed.is_at_end and header.is_unfinished(text) and not self._job.salvage:
                raise header.unfinished(self._job.file_name, len(text.strip()), "before any event")
            if self._feed.is_at_end or size >= _HEAD_LIMIT or (body and body[:1] not in (b"{", b"[")):
                raise header.no_events(
                    self._job.file_name,
                    text,
                    is_truncated=self._feed.is_at_end and header.is_unfinished(text),
                )
            size *= 4
        self._feed.drop(events_at)
        return text[:events_at]

    def _load(self, spans: list[tuple[int, int]]) -> int:
        """Stage spans through the fast path, up to one that does not parse; returns their number."""
        view = memoryview(self._feed.buffer)
        stretches = [view[start:end] for start, end in spans]
        for first in range(0, len(stretches), self._at_once):
            group = stretches[first : first + self._at_once]
            if self.stage.load(group):
                continue
            if len(group) == 1:
                return first
            for number, stretch in enumerate(group):
                if not self.stage.load([stretch]):
                    return first + number
        return len(stretches)

    def _exact(self, start: int, until: int) -> tuple[int, bool]:
        """Stage the events from `start` to at least `until` one by one.

        Returns the position where it stopped, and whether that is the array's end.
        """
        buf, found, stop = self._feed.buffer, [], start
        is_array_end = False
        for item in exact.scan(buf, start, at_end=self._feed.is_at_end):
            if isinstance(item, int):
                stop, is_array_end = item, buf[item : item + 1] == b"]"
                break
            if item.is_broken and header.EVENTS_KEY.search(buf, item.start, item.end):
                raise header.several(
                    self._job.file_name,
                    f"byte {self._feed.offset + item.start} of the JSON text",
                    buf[item.start : item.end],
                )
            found.append(item)
            stop = item.end
            if stop >= until:
                break
        if found:
            self.stage.load_exact(found, buf, self._feed.offset)
        elif self._feed.is_at_end and not is_array_end:
            if not self._job.salvage:
                raise header.unfinished(self._job.file_name, self._feed.offset + stop, "inside traceEvents")
            self._lacks_end = True
        return stop + len(buf[stop:]) - len(
            buf[stop:].lstrip(b", \t\r\n")
        ) if not is_array_end else stop, is_array_end

    def _grown(self, size: int) -> int:
        if size > _EVENT_LIMIT:
            raise TraceError(
                self._job.file_name,
                where=f"byte {self._feed.offset} of the JSON text",
                found=f"an event longer than {size} bytes",
                wanted=f"events of at most {_EVENT_LIMIT} bytes",
                advice="The file is damaged there: record it again.",
            )
        return size * 2 + self._stretch_bytes

    def _tail(self, start: int) -> bytes:
        """Everything after the events."""
        self._feed.fill(_HEAD_LIMIT)
        if not self._feed.is_at_end:
            raise TraceError(
                self._job.file_name,
                where=f"byte {self._feed.offset + start} of the JSON text",
                found=f"more than {_HEAD_LIMIT} bytes after the end of traceEvents",
                wanted="the end of the file",
                advice=(
                    "Several processes may have written into one file: record again with one file per rank."
                ),
            )
        return self._feed.buffer[start:]
