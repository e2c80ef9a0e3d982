"""The helper thread: it runs calls in order, passes on errors, and without a thread calls run immediately."""

from __future__ import annotations

import threading
import time

import pytest

from pcopy.fsio import helper_thread as module
from pcopy.fsio.helper_thread import HelperThread


def test_calls_run_in_order_in_another_thread() -> None:
    aide, done = HelperThread(), list[tuple[int, int]]()
    for number in range(100):
        aide.submit_call(lambda number: done.append((number, threading.get_ident())), number)
    aide.wait()
    assert [number for number, _ in done] == list(range(100))
    assert threading.get_ident() not in {thread for _, thread in done}
    assert aide.pending_call_count == 0


def test_waiting_until_at_most_two_calls_are_pending() -> None:
    aide, gate = HelperThread(), threading.Event()
    for _ in range(3):
        aide.submit_call(lambda: None)
    aide.submit_call(gate.wait)
    aide.submit_call(lambda: None)
    aide.wait(2)
    assert aide.pending_call_count == 2
    gate.set()
    aide.wait()


def test_error_of_a_call_is_raised_once() -> None:
    aide = HelperThread()

    def fail() -> None:
        raise OSError(5, "broken")

    aide.submit_call(fail)
    aide.submit_call(lambda: None)
    with pytest.raises(OSError, match="broken"):
        aide.wait()
    aide.wait()
    aide.submit_call(fail)
    aide.wait_for_calls_ignoring_errors()
    assert aide.pending_call_count == 0


def test_calls_run_immediately_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise OSError(11, "no thread can be started")

    monkeypatch.setattr(module, "BackgroundThread", refuse)
    aide, done = HelperThread(), list[int]()
    aide.submit_call(done.append, 1)
    assert done == [1]
    aide.wait()


def test_arguments_are_released_after_the_call() -> None:
    """The buffer is lent to another borrower afterwards."""
    aide, buffer = HelperThread(), bytearray(10)
    view = memoryview(buffer)
    aide.submit_call(len, view[:])
    aide.wait()
    time.sleep(0.01)
    view.release()
    buffer.extend(b"more")  # raises BufferError while a view exists
