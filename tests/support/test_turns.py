"""Turns: many tests run concurrently or one alone, and none waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.turns import Turns


class Worker:
    """A thread that has a turn until ``go`` ends it."""

    def __init__(self, place: Path, *, alone: bool) -> None:
        self.runs = threading.Event()
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._play, args=(Turns(place), alone))
        self._thread.start()

    def _play(self, turns: Turns, alone: bool) -> None:
        with turns.turn(alone=alone):
            self.runs.set()
            self._go.wait(20)

    def go(self) -> None:
        self._go.set()
        self._thread.join()


@contextmanager
def started(place: Path, *, alone: bool) -> Iterator[Worker]:
    worker = Worker(place, alone=alone)
    try:
        yield worker
    finally:
        worker.go()


def test_ordinary_tests_run_concurrently(tmp_path: Path) -> None:
    with started(tmp_path, alone=False) as first, started(tmp_path, alone=False) as second:
        assert first.runs.wait(20)
        assert second.runs.wait(20)


def test_exclusive_test_waits_for_running_tests_but_not_for_later_ones(tmp_path: Path) -> None:
    with started(tmp_path, alone=False) as first:
        assert first.runs.wait(20)
        with started(tmp_path, alone=True) as alone:
            assert not alone.runs.wait(0.1)
            with started(tmp_path, alone=False) as later:
                assert not later.runs.wait(0.1)
                first.go()
                assert alone.runs.wait(20)
                assert not later.runs.wait(0.1)
                alone.go()
                assert later.runs.wait(20)


def test_all_wait_for_the_first_but_not_for_one_another(tmp_path: Path) -> None:
    story: list[str] = []

    def second() -> None:
        with Turns(tmp_path).first(), Turns(tmp_path).first():
            story.append("others")

    other = threading.Thread(target=second)
    with Turns(tmp_path).first():
        other.start()
        other.join(0.1)
        story.append("first")
    other.join(20)
    assert story == ["first", "others"]
