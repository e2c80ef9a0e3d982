"""What every store of waiting tasks has to do, as programs over a way to open one; each raises where it does not."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from pcopy.engine.task import TASK_OVERHEAD_BYTES, Task


class Backlog(Protocol):
    """First in, first out."""

    @property
    def count(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def append(self, task: Task) -> None: ...
    def pop_frame(self) -> list[Task]: ...
    def close(self) -> None: ...


Open = Callable[[Path], Backlog]
"""Opens an empty store that keeps its files in a directory."""


def task(number: int, size: int = 0) -> Task:
    return Task((1, number % 7, number), 2, os.urandom(size), number, number % 2 == 0, number % 3 - 1)


def drained(store: Backlog) -> Iterator[Task]:
    while frame := store.pop_frame():
        yield from frame


def first_in_first_out(open_store: Open, spool: Path, steps: Iterable[int]) -> None:
    """Against a plain queue: appends of tasks of that size, -1 takes a frame, -2 closes."""
    store, model = open_store(spool), deque[Task]()
    for number, step in enumerate(steps):
        if step >= 0:
            model.append(task(number, step))
            store.append(model[-1])
        elif step == -1:
            frame = store.pop_frame()
            assert bool(frame) == bool(model)
            assert all(type(each) is Task for each in frame)
            assert frame == [model.popleft() for _ in frame]
        else:
            store.close()
            model.clear()
        assert store.count == len(model)
        assert store.memory_bytes == sum(TASK_OVERHEAD_BYTES + len(each.payload) for each in model)
    assert list(drained(store)) == list(model)
    assert (store.count, store.memory_bytes, store.pop_frame()) == (0, 0, [])
    store.close()


def grows_and_shrinks(open_store: Open, spool: Path, tasks: int) -> None:
    """Far more than it begins with, twice; in between it is empty and has given its room back."""
    store = open_store(spool)
    for _ in range(2):
        free = available(spool)
        for number in range(tasks):
            store.append(task(number, 100))
        assert store.count == tasks
        assert free - available(spool) > tasks * 100
        for number, each in enumerate(drained(store)):
            assert each.id[2] == number
            store_count = tasks - number
            assert store.count < store_count
        assert number == tasks - 1
        assert free - available(spool) < 1 << 20
    store.close()


def room_is_used_again(open_store: Open, spool: Path, rounds: int, held: int) -> None:
    """As many come as go, for long. Which store keeps its files small then, the caller says by ``spool``'s size."""
    store = open_store(spool)
    number = 0
    for _ in range(held):
        store.append(task(number, 100))
        number += 1
    gone = 0
    for _ in range(rounds):
        for each in store.pop_frame():
            assert each.id[2] == gone
            gone += 1
            store.append(task(number, 100))
            number += 1
    assert store.count == held
    store.close()


def large_tasks(open_store: Open, spool: Path) -> None:
    """Payloads beyond what a frame or the first map holds."""
    store = open_store(spool)
    made = [task(number, size) for number, size in enumerate((0, 5 << 20, 1, 1 << 20, 40 << 20, 3))]
    for each in made:
        store.append(each)
    assert list(drained(store)) == made
    store.close()


def full_spool(open_store: Open, spool: Path) -> OSError:
    """Appends until there is no room; returns the error."""
    store = open_store(spool)
    try:
        for number in range(1_000_000):
            store.append(task(number, 1000))
    except OSError as error:
        assert error.errno == errno.ENOSPC
        return error
    finally:
        store.close()
    raise AssertionError("there was room for 1 GB")


def leaves_nothing(open_store: Open, spool: Path) -> None:
    """No name is left once it is closed, nor its room taken."""
    free = available(spool)
    store = open_store(spool)
    for number in range(5000):
        store.append(task(number, 100))
    store.close()
    assert (store.count, store.memory_bytes) == (0, 0)
    assert not list(spool.iterdir())
    assert free - available(spool) < 64 << 10


def available(place: Path) -> int:
    """Bytes that are free on the file system."""
    reported = os.statvfs(place)
    return reported.f_bavail * reported.f_frsize
