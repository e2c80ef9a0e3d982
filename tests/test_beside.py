"""Threads that fail to start: callers do not wait for them for ever, and their work is done once or not at all."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable

import pytest

from pcopy import background
from pcopy.background import BackgroundThread


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_START_TIMEOUT", 0.01)


def test_thread_runs_concurrently_with_its_caller() -> None:
    go, done = threading.Event(), threading.Event()

    def action() -> None:
        go.wait()
        done.set()

    thread = BackgroundThread(action)
    assert not thread.join(0.0)
    go.set()
    assert thread.join(None)
    assert done.is_set()
    assert thread.join(0.0)  # may be called again


def test_failed_thread_counts_as_ended() -> None:
    def action() -> None:
        raise SystemExit

    assert BackgroundThread(action).join(None)


def test_thread_that_never_starts_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Callable[[object], None]] = []
    ran: list[bool] = []
    monkeypatch.setattr(background, "start_new_thread", lambda run, _: late.append(run))
    with pytest.raises(OSError, match="no thread"):
        BackgroundThread(lambda: ran.append(True))
    assert len(late) > 1
    for run in late:  # each starts after all
        run(None)
    assert ran == []


def test_thread_that_dies_before_its_start_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_START_TIMEOUT", 60.0)
    monkeypatch.setattr(background, "start_new_thread", lambda run, _: 0)
    began = time.monotonic()
    with pytest.raises(OSError, match="no thread"):
        BackgroundThread(lambda: None)
    assert time.monotonic() < began + 10


def test_second_attempt_to_start_a_thread_may_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    real, tries = _thread.start_new_thread, []

    def start(run: Callable[[object], None], arguments: tuple[object]) -> int:
        tries.append(run)
        return real(run, arguments) if len(tries) > 1 else 0

    monkeypatch.setattr(background, "start_new_thread", start)
    monkeypatch.setattr(background, "_START_TIMEOUT", 1.0)
    ran: list[bool] = []
    assert BackgroundThread(lambda: ran.append(True)).join(None)
    assert ran == [True]
    tries[0](None)
    assert ran == [True]


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_failure_to_create_a_thread_is_an_error(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def refuse(*_: object) -> int:
        raise error

    monkeypatch.setattr(background, "start_new_thread", refuse)
    with pytest.raises(OSError, match="no thread"):
        BackgroundThread(lambda: None)
