"""A thread beside: orders are done in turn, errors arrive, and without a thread all is done at once."""

from __future__ import annotations

import threading
import time

import pytest

from pcopy.fsio import aide as module
from pcopy.fsio.aide import Aide


def test_orders_are_done_in_their_order_by_another_thread() -> None:
    aide, done = Aide(), list[tuple[int, int]]()
    for number in range(100):
        aide.hand(lambda number: done.append((number, threading.get_ident())), number)
    aide.wait()
    assert [number for number, _ in done] == list(range(100))
    assert threading.get_ident() not in {thread for _, thread in done}
    assert aide.under_way == 0


def test_waiting_for_some() -> None:
    aide, gate = Aide(), threading.Event()
    for _ in range(3):
        aide.hand(lambda: None)
    aide.hand(gate.wait)
    aide.hand(lambda: None)
    aide.wait(2)
    assert aide.under_way == 2
    gate.set()
    aide.wait()


def test_an_error_is_raised_once() -> None:
    aide = Aide()

    def fail() -> None:
        raise OSError(5, "broken")

    aide.hand(fail)
    aide.hand(lambda: None)
    with pytest.raises(OSError, match="broken"):
        aide.wait()
    aide.wait()
    aide.hand(fail)
    aide.finish()
    assert aide.under_way == 0


def test_no_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise OSError(11, "no thread can be started")

    monkeypatch.setattr(module, "Beside", refuse)
    aide, done = Aide(), list[int]()
    aide.hand(done.append, 1)
    assert done == [1]
    aide.wait()


def test_what_was_handed_is_not_held_any_longer() -> None:
    """A buffer is lent to somebody else then."""
    aide, buffer = Aide(), bytearray(10)
    view = memoryview(buffer)
    aide.hand(len, view[:])
    aide.wait()
    time.sleep(0.01)
    view.release()
    buffer.extend(b"more")  # refused as long as there is a view
