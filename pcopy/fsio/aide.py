"""A thread beside the one that copies: it digests what was read, asks for write-back, or reads ahead.

    aide = Aide()
    aide.hand(digest.update, piece)     # returns at once
    aide.wait(2)                        # until two orders at most are not done yet

Orders are done one after the other, as they were handed. Where no thread is to be had, each is done at once.
"""

from __future__ import annotations

from _queue import SimpleQueue  # queue loads threading, too, which no copy needs
from collections.abc import Callable
from typing import Any

from pcopy.beside import Beside

_Order = tuple[Callable[..., object], tuple[Any, ...]]


class Aide:
    """Hand and wait in one thread only."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._under_way = 0
        self._is_alone: bool | None = None

    @property
    def under_way(self) -> int:
        """How many orders are not done yet, or not known to be."""
        while self._under_way and not self._done.empty():
            self._take()
        return self._under_way

    def hand(self, action: Callable[..., object], *arguments: Any) -> None:
        """Has ``action`` done; what it raises, ``wait`` raises."""
        if self._is_alone is None:
            self._begin()
        if self._is_alone:
            action(*arguments)
        else:
            self._under_way += 1
            self._orders.put((action, arguments))

    def wait(self, left: int = 0) -> None:
        """Until at most ``left`` orders are not done yet; raises what one of the others has raised."""
        while self._under_way > left:
            self._take()

    def finish(self) -> None:
        """As ``wait``, after an error: nothing more is to be told."""
        while self._under_way:
            self._under_way -= 1
            self._done.get()

    def _take(self) -> None:
        self._under_way -= 1
        error = self._done.get()
        if error is not None:
            raise error

    def _begin(self) -> None:
        try:
            Beside(self._work)
            self._is_alone = False
        except OSError:
            self._is_alone = True

    def _work(self) -> None:
        while True:
            action, arguments = self._orders.get()
            error: BaseException | None = None
            try:
                action(*arguments)
            except BaseException as raised:  # for the other thread
                error = raised
            del action, arguments  # they hold a buffer, which is lent to somebody else now
            self._done.put(error)
