"""A helper thread that runs calls in the background: it digests what was read, starts write-back, or reads ahead.

    aide = Aide()
    aide.hand(digest.update, piece)     # returns immediately
    aide.wait(2)                        # blocks until at most two calls are unfinished

The calls run one after the other, in the order in which they were submitted. If no thread can be started, each call
runs immediately in the caller's thread.
"""

from __future__ import annotations

from _queue import SimpleQueue  # queue loads threading, too, which no copy needs
from collections.abc import Callable
from typing import Any

from pcopy.beside import Beside

_Order = tuple[Callable[..., object], tuple[Any, ...]]


class Aide:
    """A helper thread and the queue of the calls that it runs.

    The methods must all be called from one thread.
    """

    def __init__(self) -> None:
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._under_way = 0
        self._is_alone: bool | None = None
        """True if no thread could be started, None before the first call."""

    @property
    def under_way(self) -> int:
        """Number of calls that are not known to be finished. Raises what a finished call has raised."""
        while self._under_way and not self._done.empty():
            self._take()
        return self._under_way

    def hand(self, action: Callable[..., object], *arguments: Any) -> None:
        """Submit ``action`` with ``arguments``; start the thread at the first call.

        An exception of ``action`` is raised later, by ``wait`` or ``under_way``. Without a thread, ``action`` runs now
        and its exception is raised here.
        """
        if self._is_alone is None:
            self._begin()
        if self._is_alone:
            action(*arguments)
        else:
            self._under_way += 1
            self._orders.put((action, arguments))

    def wait(self, remaining: int = 0) -> None:
        """Wait until at most ``remaining`` calls are unfinished; raise what one of the finished calls has raised."""
        while self._under_way > remaining:
            self._take()

    def finish(self) -> None:
        """Wait until all calls are finished, and ignore their exceptions.

        For use after an error that is being reported already.
        """
        while self._under_way:
            self._under_way -= 1
            self._done.get()

    def _take(self) -> None:
        """Wait for one call to finish; raise what it raised."""
        self._under_way -= 1
        error = self._done.get()
        if error is not None:
            raise error

    def _begin(self) -> None:
        """Start the thread. If that fails, calls run in the caller's thread from now on."""
        try:
            Beside(self._work)
            self._is_alone = False
        except OSError:
            self._is_alone = True

    def _work(self) -> None:
        """Run the submitted calls in turn, for ever. Runs in the helper thread."""
        while True:
            action, arguments = self._orders.get()
            error: BaseException | None = None
            try:
                action(*arguments)
            except BaseException as raised:  # raised again by ``_take``, in the thread of the caller
                error = raised
            del action, arguments  # they refer to a buffer that the caller reuses as soon as this call is finished
            self._done.put(error)
