"""A helper thread that runs calls in the background: it digests what was read, starts write-back, or reads ahead.

    helper = HelperThread()
    helper.submit(digest.update, piece)   # returns immediately
    helper.wait(2)                        # blocks until at most two calls are unfinished

The calls run one after the other, in the order in which they were submitted. If no thread can be started, each call
runs immediately in the caller's thread.
"""

from __future__ import annotations

from _queue import Empty, SimpleQueue  # queue loads threading, too, which no copy needs
from collections.abc import Callable
from typing import Any

from pcopy.background import BackgroundThread

_Call = tuple[Callable[..., object], tuple[Any, ...]]

_THREAD_CHECK_INTERVAL = 0.5
"""Seconds between two checks, while a result is awaited, whether the thread has ended for lack of memory."""


class HelperThread:
    """A helper thread and the queue of the calls that it runs.

    The methods must all be called from one thread.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._results: SimpleQueue[BaseException | None] = SimpleQueue()
        self._pending = 0
        self._thread: BackgroundThread | None = None
        self._runs_inline = False
        """True if no thread could be started, or if it has ended for lack of memory."""

    @property
    def pending_call_count(self) -> int:
        """Number of submitted calls that may still be unfinished. Reading it raises the exception of a call that has
        finished with one.
        """
        while self._pending and (self._runs_inline or not self._results.empty()):
            self._await_end_of_next_call()
        return self._pending

    def submit_call(self, action: Callable[..., object], *arguments: Any) -> None:
        """Make the helper thread run ``action(*arguments)`` after the calls that were submitted before; start the
        thread at the first call.

        An exception of ``action`` is raised later, by ``wait`` or ``pending_call_count``. If no thread can be started,
        ``action`` runs now and its exception is raised here.
        """
        if self._thread is None and not self._runs_inline:
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
            self._result_of_next_call()

    def _await_end_of_next_call(self) -> None:
        """Wait until one more call is finished. If the call has raised an exception, raise that."""
        self._pending -= 1
        error = self._result_of_next_call()
        if error is not None:
            raise error

    def _result_of_next_call(self) -> BaseException | None:
        """Wait until one more call is finished; return its exception, or None.

        If the thread has ended for lack of memory, return the exception that ended it for each call that is unfinished;
        later calls run in the caller's thread.
        """
        while True:
            try:
                return self._results.get(block=not self._runs_inline, timeout=_THREAD_CHECK_INTERVAL)
            except Empty:
                error = self._thread.error if self._thread is not None else None
                if self._runs_inline:
                    return error
                self._runs_inline = error is not None

    def _start_thread(self) -> None:
        """Start the thread. If that fails, calls run in the caller's thread from now on."""
        try:
            self._thread = BackgroundThread(self._run_submitted_calls)
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
