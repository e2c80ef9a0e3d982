"""A helper thread that runs calls in the background: it digests what was read, starts write-back, or reads ahead.

    helper = HelperThread()
    helper.submit(digest.update, piece)   # returns immediately
    helper.wait(2)                        # blocks until at most two calls are unfinished

The calls run one after the other, in the order in which they were submitted. If no thread can be started, each call
runs immediately in the caller's thread.
"""

from __future__ import annotations

from _queue import SimpleQueue  # queue loads threading, too, which no copy needs
from collections.abc import Callable
from typing import Any

from pcopy.background import BackgroundThread

_Call = tuple[Callable[..., object], tuple[Any, ...]]


class HelperThread:
    """A helper thread and the queue of the calls that it runs.

    The methods must all be called from one thread.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._results: SimpleQueue[BaseException | None] = SimpleQueue()
        self._pending = 0
        self._runs_inline: bool | None = None
        """True if no thread could be started, None before the first call."""

    @property
    def pending_call_count(self) -> int:
        """Number of submitted calls that may still be unfinished. Reading it raises the exception of a call that has
        finished with one.
        """
        while self._pending and not self._results.empty():
            self._await_end_of_next_call()
        return self._pending

    def submit_call(self, action: Callable[..., object], *arguments: Any) -> None:
        """Make the helper thread run ``action(*arguments)`` after the calls that were submitted before; start the
        thread at the first call.

        An exception of ``action`` is raised later, by ``wait`` or ``pending_call_count``. If no thread can be started,
        ``action`` runs now and its exception is raised here.
        """
        if self._runs_inline is None:
            self._start_thread()
        if self._runs_inline:
            action(*arguments)
        else:
            self._pending += 1
            self._calls.put((action, arguments))

    def wait(self, remaining: int = 0) -> None:
        """Wait until at most ``remaining`` calls are unfinished. If one of the finished calls has raised an exception,
        raise that.
        """
        while self._pending > remaining:
            self._await_end_of_next_call()

    def wait_for_calls_ignoring_errors(self) -> None:
        """Wait until all calls are finished, and ignore their exceptions.

        For use after an error that is being reported already.
        """
        while self._pending:
            self._pending -= 1
            self._results.get()

    def _await_end_of_next_call(self) -> None:
        """Wait until one more call is finished. If the call has raised an exception, raise that."""
        self._pending -= 1
        error = self._results.get()
        if error is not None:
            raise error

    def _start_thread(self) -> None:
        """Start the thread. If that fails, calls run in the caller's thread from now on."""
        try:
            BackgroundThread(self._run_submitted_calls)
            self._runs_inline = False
        except OSError:
            self._runs_inline = True

    def _run_submitted_calls(self) -> None:
        """Run the submitted calls one after the other, for ever. This is the function of the helper thread."""
        while True:
            action, arguments = self._calls.get()
            error: BaseException | None = None
            try:
                action(*arguments)
            except BaseException as raised:  # raised again by ``_await_end_of_next_call``, in the caller's thread
                error = raised
            del action, arguments  # they refer to a buffer that the caller reuses as soon as this call is finished
            self._results.put(error)
