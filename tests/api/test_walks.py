"""Walks: entries are found in bounded memory, by ``for`` and ``async for``, and the ranks end with the walk."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import termios
import time
from array import array
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path

import pytest

import pcopy
from tests.api.conftest import child, processes_with
from tests.support.processes import HANGS, PROMPT, wait_until
from tests.support.warm import TOKEN


def unread(walk: pcopy.Walk) -> int:
    """Return the number of bytes that the pipe with the output of a walk has."""
    size = array("i", [0])
    fcntl.ioctl(walk._job.output, termios.FIONREAD, size)
    return size[0]


@pytest.fixture
def wide(area: Path) -> Path:
    for number in range(20_000):
        if number % 1000 == 0:
            (area / f"wide/{number // 1000}").mkdir(parents=True)
        (area / f"wide/{number // 1000}/{number:0100}").touch()
    return area / "wide"


@pytest.mark.parametrize("way", ["close", "with", "reference"])
def test_walk_that_is_closed_early_ends_the_ranks(wide: Path, way: str) -> None:
    walk = pcopy.walk(wide, ranks=2)
    next(walk)
    assert len(processes_with(os.environ[TOKEN])) >= 1  # The output exceeds the pipe, so the ranks wait.
    if way == "close":
        walk.close()
        walk.close()
    elif way == "with":
        with walk:
            pass
    else:
        del walk  # without waiting
        assert wait_until(lambda: not processes_with(os.environ[TOKEN]), PROMPT)
    assert processes_with(os.environ[TOKEN]) == []


def test_walk_that_finds_nothing_is_closed(wide: Path) -> None:
    walk = pcopy.walk(wide, ["-name", "nothing"], oplimit=100, ranks=1)  # It takes more than three minutes.
    assert wait_until(walk._job.progress)
    begun = time.monotonic()
    walk.close()
    assert time.monotonic() - begun < PROMPT
    assert processes_with(os.environ[TOKEN]) == []


def test_memory_is_bounded(wide: Path) -> None:
    """The child waits while nothing is read."""
    walk = pcopy.walk(wide, ranks=1)
    next(walk)
    assert wait_until(lambda: unread(walk) >= 60_000)  # The pipe is full.
    assert not walk._job.done()
    assert sum(1 for _ in walk) == 20_000 + 20
    assert list(walk) == []


def test_walk_in_an_event_loop(wide: Path, tree: Path) -> None:
    """The loop runs other tasks, the child waits for the caller, and a walk may be changed over to ``for``."""

    async def count() -> int:
        walk, ticks, entries = pcopy.walk(wide, ranks=1), 0, 1

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        assert repr(walk) == "<Walk: running, 0 entries so far>"
        first = await anext(walk)
        assert isinstance(first, pcopy.Entry)
        assert len(walk._lines) < 1000
        assert ticks > 3  # while the child started
        assert wait_until(lambda: unread(walk) >= 60_000)
        assert not walk._job.done()
        entries += isinstance(next(walk), pcopy.Entry)
        async for _ in walk:
            entries += 1
        assert [entry async for entry in walk] == []
        ticking.cancel()
        assert repr(walk) == "<Walk: ended, 20021 entries so far>"
        return entries

    assert asyncio.run(count()) == 20_000 + 21

    async def paths() -> list[pcopy.Entry]:
        return [entry async for entry in pcopy.walk(tree)]

    assert sorted(asyncio.run(paths()), key=attrgetter("path")) == sorted(pcopy.walk(tree), key=attrgetter("path"))


def test_failures_of_a_walk_in_an_event_loop(area: Path, tree: Path) -> None:
    entries = []

    async def walk() -> None:
        async for entry in pcopy.walk([area / "missing", tree / "inner"]):
            entries.append(entry.path)

    with pytest.raises(pcopy.ItemsFailed) as failed:
        asyncio.run(walk())
    assert os.fsencode(tree / "inner/file") in entries
    assert [item.path for item in failed.value] == [os.fsencode(area / "missing")]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_slow_reader_of_a_walk_with_failures(area: Path, tree: Path, kind: str) -> None:
    """The program has ended, and its exception is known, before the entries are read."""
    walk = pcopy.walk([area / "missing", tree])
    assert wait_until(walk._job.done)
    found = []

    async def read() -> None:
        async for entry in walk:
            found.append(entry.path)

    def read_at_once() -> None:
        for entry in walk:
            found.append(entry.path)

    with pytest.raises(pcopy.ItemsFailed):
        asyncio.run(read()) if kind == "async" else read_at_once()
    assert len(found) == 1 + len(list(tree.rglob("*")))


@pytest.mark.parametrize("way", ["cancel", "aclose", "close", "block", "break"])
def test_walk_that_ends_early_in_an_event_loop(wide: Path, way: str) -> None:
    async def wait_for_entry(walk: pcopy.Walk) -> str:
        try:
            await anext(walk)
        except StopAsyncIteration:
            return "ended"
        return "an entry"

    async def walk_and_end() -> str | None:
        if way == "break":
            async for _ in pcopy.walk(wide, ranks=1):
                break
            return None
        walk = pcopy.walk(wide, ["-name", "nothing"], oplimit=100, ranks=1)  # It takes more than three minutes.
        waiting = asyncio.create_task(wait_for_entry(walk))
        await asyncio.sleep(0)
        if way == "cancel":
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert wait_until(lambda: not processes_with(os.environ[TOKEN]), PROMPT)  # while the walk still exists
            return None
        if way == "aclose":
            await walk.aclose()
        elif way == "close":
            walk.close()
        else:
            async with walk:
                pass
        return await asyncio.wait_for(waiting, HANGS)

    assert asyncio.run(walk_and_end()) == (None if way in ("cancel", "break") else "ended")
    assert wait_until(lambda: not processes_with(os.environ[TOKEN]), PROMPT)


@pytest.mark.parametrize("way", ["aclose", "close"])
def test_number_of_the_closed_output_belongs_to_another_task(wide: Path, way: str) -> None:
    """The task that waits for the walk does not end what the loop does for a socket with the same number."""

    async def read_from_socket() -> bytes:
        walk = pcopy.walk(wide, ["-name", "nothing"], oplimit=100, ranks=1)
        number = walk._job.output.fileno()
        waiting = asyncio.create_task(anext(walk, None))
        await asyncio.sleep(0)
        closing = asyncio.create_task(walk.aclose()) if way == "aclose" else None
        if closing is None:
            walk.close()
        else:
            while not walk._job.output.closed:
                await asyncio.sleep(0)
        with ExitStack() as sockets:
            ends: tuple[socket.socket, ...] = ()
            while number not in (end.fileno() for end in ends):
                ends = tuple(map(sockets.enter_context, socket.socketpair()))
            own, other = ends if ends[0].fileno() == number else reversed(ends)
            reader, writer = await asyncio.open_connection(sock=own)
            assert await waiting is None
            other.send(b"line\n")
            line = await asyncio.wait_for(reader.readline(), PROMPT)
            writer.close()
        if closing is not None:
            await closing
        return line

    assert asyncio.run(read_from_socket()) == b"line\n"


def test_second_task_of_a_walk_is_refused(wide: Path) -> None:
    async def wait_twice() -> None:
        walk = pcopy.walk(wide, ranks=1)
        waiting = asyncio.create_task(anext(walk))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match=r"^another task waits for this walk$"):
            await anext(walk)
        assert isinstance(await waiting, pcopy.Entry)  # The walk continues.
        assert isinstance(await anext(walk), pcopy.Entry)
        await walk.aclose()

    asyncio.run(wait_twice())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_lines_that_arrive_in_parts(area: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    parts = [b"he", b'ad\n{"path": "a", ', b'"mode": "755"}\n{"path": "b"}', b"\n"]
    code = f"import os, time\nfor part in {parts}: os.write(1, part); time.sleep(0.05)\nos.read(0, 1)"
    child(area, monkeypatch, code)

    async def entries(walk: pcopy.Walk) -> list[pcopy.Entry]:
        return [await anext(walk), await anext(walk)]

    walk = pcopy.walk(area)
    found = asyncio.run(entries(walk)) if kind == "async" else [next(walk), next(walk)]
    assert [repr(entry) for entry in found] == ["Entry(path=b'a', mode=0o755)", "Entry(path=b'b')"]
    walk.close()


def test_fields_of_an_entry_are_listed(tree: Path) -> None:
    entry = next(pcopy.walk(tree, fields=["size", "mtime_ns"]))
    assert {name for name in dir(entry) if not name.startswith("_")} == {"path", "type", "size", "mtime_ns"}
    with pytest.raises(AttributeError, match="'mode' is not among the fields of this walk"):
        _ = entry.mode


def test_items_that_cannot_be_read_are_reported_at_the_end(area: Path, tree: Path) -> None:
    entries = []
    with pytest.raises(pcopy.ItemsFailed) as failed:
        for entry in pcopy.walk([area / "missing", tree / "inner"]):
            entries.append(entry.path)
    assert os.fsencode(tree / "inner/file") in entries
    assert [item.path for item in failed.value] == [os.fsencode(area / "missing")]


def test_walk_whose_output_is_not_complete(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, message in (('head\n{"path"', "is not complete"), ("head\n{}\n", "is not an entry")):
        child(area, monkeypatch, f"print({text!r}, end='')")
        with pytest.raises(pcopy.InternalError, match=message):
            list(pcopy.walk(area))


@pytest.mark.parametrize("action", ["-fprint", "-fprint0", "-fls", "-fprintf", "-printf"])
def test_advice_about_actions_that_write_files(area: Path, action: str) -> None:
    """The word of the caller stays, and the advice after it names no option that ``walk`` does not have."""
    with pytest.raises(pcopy.Refused) as refused:
        list(pcopy.walk(area, [action, "x"]))
    assert str(refused.value) == f"{action}: use the entries in a loop; see help(pcopy.walk)"
