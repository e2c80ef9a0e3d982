"""A thread beside: orders are done in turn, errors arrive, and without a thread all is done at once."""

from __future__ import annotations

import threading
import time

import pytest

from pcopy.fsio import helper_thread as module
from pcopy.fsio.helper_thread import HelperThread


def test_orders_are_done_in_their_order_by_another_thread() -> None:
    aide, done = HelperThread(), list[tuple[int, int]]()
    for number in range(100):
        aide.submit(lambda number: done.append((number, threading.get_ident())), number)
    aide.wait()
    assert [number for number, _ in done] == list(range(100))
    assert threading.get_ident() not in {thread for _, thread in done}
    assert aide.pending == 0


def test_waiting_for_some() -> None:
    aide, gate = HelperThread(), threading.Event()
    for _ in range(3):
        aide.submit(lambda: None)
    aide.submit(gate.wait)
    aide.submit(lambda: None)
    aide.wait(2)
    assert aide.pending == 2
    gate.set()
    aide.wait()


def test_an_error_is_raised_once() -> None:
    aide = HelperThread()

    def fail() -> None:
        raise OSError(5, "broken")

    aide.submit(fail)
    aide.submit(lambda: None)
    with pytest.raises(OSError, match="broken"):
        aide.wait()
    aide.wait()
    aide.submit(fail)
    aide.drain()
    assert aide.pending == 0


def test_no_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise OSError(11, "no thread can be started")

    monkeypatch.setattr(module, "BackgroundThread", refuse)
    aide, done = HelperThread(), list[int]()
    aide.submit(done.append, 1)
    assert done == [1]
    aide.wait()


def test_what_was_handed_is_not_held_any_longer() -> None:
    """A buffer is lent to somebody else then."""
    aide, buffer = HelperThread(), bytearray(10)
    view = memoryview(buffer)
    aide.submit(len, view[:])
    aide.wait()
    time.sleep(0.01)
    view.release()
    buffer.extend(b"more")  # refused as long as there is a view
