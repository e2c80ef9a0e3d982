"""Events of a job whose consumer is slower: no failure is lost, and memory is bounded."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import pcopy
from pcopy.api import results
from pcopy.api.events import EventQueue
from pcopy.api.running import Request, RunningJob
from tests.api.conftest import PROGRESS, child, progress_line
from tests.support.processes import HANGS, wait_until

MANY_EVENTS = f"""
import base64, json, sys
progress = {PROGRESS!r}
sys.stdout = sys.stderr
sys.stdin.buffer.raw.read(1)
print("begin", flush=True)
if sys.stdin.buffer.raw.read(1) != b"g":
    sys.exit(3)
for number in range(COUNT):
    path = base64.b64encode(b"%d" % number).decode()
    print(json.dumps({{"path_b64": path, "operation": "open", "errno": 5, "message": "no" * 20}}))
    if number % 10 == 0:
        print(json.dumps(progress | {{"elapsed": number}}))
        print("notice", number)
print(json.dumps(progress | {{"elapsed": COUNT}}))
"""
COUNT = 200_000
MOST_OBJECTS = {pcopy.FailedItem: 1000, pcopy.Notice: 2000, pcopy.Progress: 10}
"""How many events may exist while the consumer sleeps."""


def job_with_many_events(area: Path, monkeypatch: pytest.MonkeyPatch) -> RunningJob[Any]:
    child(area, monkeypatch, MANY_EVENTS.replace("COUNT", str(COUNT)))
    job: RunningJob[Any] = RunningJob(Request("pcopy", [], lambda finished: finished.failures))
    begin_when_heard(job)
    return job


def begin_when_heard(job: RunningJob[Any]) -> None:
    """Have the job begin to report when there is a consumer, which would never get earlier events."""

    def begin() -> None:
        wait_until(lambda: bool(job._listeners))
        job._input.write(b"g")
        job._input.flush()

    threading.Thread(target=begin, daemon=True).start()


def go(job: RunningJob[Any]) -> None:
    """Have the job report, to its end; the caller does not take any event meanwhile."""
    job._input.write(b"g")
    job._input.flush()
    assert job._ended.wait(HANGS)


def check_memory() -> None:
    numbers = Counter(type(each) for each in gc.get_objects())
    assert {kind: numbers[kind] for kind, most in MOST_OBJECTS.items() if numbers[kind] > most} == {}


def check_events(events: list[Any]) -> None:
    assert events.pop(0) == pcopy.Notice("begin")
    failures = [event for event in events if isinstance(event, pcopy.FailedItem)]
    assert [int(failure.path) for failure in failures] == list(range(COUNT))
    progresses = [event.elapsed for event in events if isinstance(event, pcopy.Progress)]
    assert progresses == [COUNT]
    notices = [event.text for event in events if isinstance(event, pcopy.Notice)]
    assert notices == [f"notice {number}" for number in range(COUNT)[::10]][-len(notices) :]
    assert 500 <= len(notices) <= 2000
    position = events.index(pcopy.Notice(notices[0]))
    assert events[position - 1] == failures[int(notices[0].split()[1])]


def test_slow_consumer(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_with_many_events(area, monkeypatch)
    events = iter(job)
    first = next(events)
    go(job)
    check_memory()
    check_events([first, *events])
    assert len(job.wait(0)) == COUNT


def test_slow_consumer_in_an_event_loop(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def consume() -> None:
        job = job_with_many_events(area, monkeypatch)
        events = aiter(job)
        first = await anext(events)
        go(job)  # It blocks the event loop.
        check_memory()
        check_events([first, *[event async for event in events]])
        assert len(await job) == COUNT

    asyncio.run(consume())


def test_function_that_is_called_with_progress_gets_the_newest(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    lines = [f"print({progress_line(number)!r}, file=sys.stderr, flush=True)" for number in (1, 2, 3, 4)]
    pause = "sys.stdin.buffer.raw.read(1)"
    code = "\n".join(["import sys", pause, lines[0], pause, *lines[1:]])

    def work(progress: pcopy.Progress) -> None:
        calls.append(progress.elapsed)
        if len(calls) == 1:
            go(job)

    child(area, monkeypatch, code)
    job: RunningJob[Any] = RunningJob(Request("pcopy", [], lambda _: None, progress=work))
    begin_when_heard(job)
    job.wait(HANGS)
    assert calls == [1, 4]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_consumer_that_is_quick_gets_each_event_in_order(
    area: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """With more failures than are kept in memory, and lines that are longer than what is read at once."""
    monkeypatch.setattr(results, "_MOST_LINES_IN_MEMORY", 3)
    monkeypatch.setattr(results, "_BYTES_OF_PORTION", 50)
    code = """
import base64, json, os, sys
sys.stdout = sys.stderr
os.read(0, 1)
for number in range(20):
    path = base64.b64encode(b"%d" % number * (number * 5 + 1)).decode()
    print(json.dumps({"path_b64": path, "operation": "open", "errno": 5, "message": "no"}))
    print("notice", number, flush=True)
    if number % 5 == 0:
        os.read(0, 1)
"""
    child(area, monkeypatch, code)
    job: RunningJob[Any] = RunningJob(Request("pcopy", [], lambda _: None))
    begin_when_heard(job)
    events: list[Any] = []

    def add(event: Any) -> None:
        events.append(event)
        if isinstance(event, pcopy.Notice) and int(event.text.split()[1]) % 5 == 0:
            job._input.write(b"g")
            job._input.flush()

    async def consume(each: AsyncIterator[Any]) -> None:
        async for event in each:
            add(event)

    if kind == "sync":
        each: Iterator[Any] = iter(job)
        for event in each:
            add(event)
    else:
        asyncio.run(consume(aiter(job)))
    assert [event.path for event in events[::2]] == [b"%d" % number * (number * 5 + 1) for number in range(20)]
    assert [event.text for event in events[1::2]] == [f"notice {number}" for number in range(20)]


def test_new_progress_takes_the_place_of_one_that_was_not_taken() -> None:
    lock = threading.RLock()
    queue = EventQueue(results.JsonLines(results.FailedItem.from_json), lock, lambda: None)
    old, new = (pcopy.Progress.from_json({**PROGRESS, "elapsed": number}) for number in (1, 2))
    with lock:
        for event in (old, pcopy.Notice("one"), pcopy.Notice("two"), new):
            queue.put(event)
    assert [queue.take() for _ in range(4)] == [new, pcopy.Notice("one"), pcopy.Notice("two"), None]


def test_events_in_the_queue_leave_time_for_other_tasks(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another task runs at least once in 1,000 events."""

    async def consume() -> None:
        job = job_with_many_events(area, monkeypatch)
        events, ticks, count = aiter(job), 0, 0
        await anext(events)
        go(job)

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        async for _ in events:
            count += 1
            assert ticks >= count // 1000
        assert count > COUNT
        ticking.cancel()

    asyncio.run(consume())


def test_deadline_while_there_is_no_event(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(area, monkeypatch, "import sys; sys.stdin.buffer.raw.read(1)")
    job: RunningJob[Any] = RunningJob(Request("pcopy", [], lambda _: None, progress=lambda _: None))
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        job.wait(0.2)
    assert time.monotonic() - begun >= 0.2
    job.stop()
    job.wait(HANGS)
