"""A program that runs in a child process: ``RunningJob``.

Rules:

- No signal handler is installed.
- The child's standard input is a pipe on which nothing is written. When the caller closes it, or ends in whatever way,
  the program stops in order (``--stop-at-eof``). Launchers pass this on to rank 0.
- Two threads read the child's outputs, so that the child never waits for the caller. Both end at most about a
  second after the child, even if other processes have its outputs.
- Methods may be called from any thread.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress

from pcopy.api.arguments import refusing_unknown_keywords
from pcopy.api.errors import Error, InternalError, InvalidOption, ItemsFailed, Refused, Stopped
from pcopy.api.process import list_file, start_process, write_to_pipe
from pcopy.api.records import dataclass, field_names
from pcopy.api.typing_names import Generic, TypeVar
from pcopy.errors import EXIT_INCOMPLETE, EXIT_OK, EXIT_REFUSED

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING

if TYPE_CHECKING:
    from io import BufferedReader
    from types import TracebackType
    from typing import IO, Any, Self

    from pcopy.api.events import EventQueue
    from pcopy.api.results import Event, FailedItem, JsonLines, Progress

_Result = TypeVar("_Result")

_EVENTS_BETWEEN_OTHER_TASKS = 100
"""After how many events in the queue the event loop may run other tasks."""
_MOST_NOTICES = 100
"""The number of lines for people that are kept, for error messages."""
_MOST_NOTICES_IN_MESSAGE = 5
"""The number of lines in a message."""
_MOST_LINES_OF_LAUNCHER = 20
"""The number of lines of a launcher in a message."""
_REFUSED_OPERATION = "refuse"
"""The operation in the line of ``--errors`` about a refused request."""


def _checked_timeout(timeout: float | None) -> float | None:
    """Return a number of seconds that ``wait`` accepts; None: any time. Raise ``TypeError`` if it is no number."""
    if timeout is None or timeout >= threading.TIMEOUT_MAX:
        return None
    return max(0.0, float(timeout))


def _check_control_values(bwlimit: object, oplimit: object, active: object, pause: object) -> None:
    """Raise ``InvalidOption`` if a value of ``RunningJob.control`` has the wrong type."""
    if not (pause is None or isinstance(pause, bool)):
        raise InvalidOption(f"RunningJob.control(pause={pause!r}): neither True nor False")
    if isinstance(bwlimit, bool) or not (bwlimit is None or isinstance(bwlimit, (int, str))):
        raise InvalidOption(f"RunningJob.control(bwlimit={bwlimit!r}): neither a whole number of bytes nor text")
    for name, value in {"oplimit": oplimit, "active": active}.items():
        if isinstance(value, bool) or not (value is None or isinstance(value, int)):
            raise InvalidOption(f"RunningJob.control({name}={value!r}): not a whole number")


WHY_STATUS_IS_LOST = "another part of this process has waited for its child processes, or ignores SIGCHLD"


@dataclass(frozen=True)
class Request(Generic[_Result]):
    """A program to start.

    Fields:

    - ``program``: its name; ``words``: its arguments.
    - ``finish``: returns the result, or raises an exception, when the program has ended.
    - ``listed``: paths that ``--from`` is to list; None: the option is not given so.
    - ``launcher``: the command that starts the ranks; empty: the program does.
    - ``progress``: is called with each progress in the thread that waits.
    - ``job``: the directory that the user has chosen for the job, or the name of a recorded one.
    """

    program: str
    words: Sequence[bytes]
    finish: Callable[[FinishedProcess], _Result]
    listed: Sequence[bytes] | None = None
    launcher: Sequence[str | bytes] = ()
    progress: Callable[[Progress], object] | None = None
    job: str | None = None


@dataclass(frozen=True)
class FinishedProcess:
    """How a program has ended.

    Fields:

    - ``status``: its exit status; negative: the number of the signal that has killed it; None: it is not known,
      because another part of the caller's process has waited for the child.
    - ``message``: the lines that it has printed for people, without its name.
    - ``summary``: the object that it has printed at the end; None if it has printed none.
    - ``lines``: the lines before that, such as differences.
    - ``failures``: the lines about failures.
    - ``refusal``: the reason for which the request was refused; None if it was not, or if it is not known.
    - ``job``: the name of the job, as far as it is known.
    - ``is_requested``: True if the caller has stopped or killed it.
    - ``has_begun``: True if it has printed something; otherwise ``message`` is what its launcher has printed first.
    """

    status: int | None
    message: str
    summary: dict[str, Any] | None
    lines: JsonLines[Any]
    failures: JsonLines[Any]
    refusal: FailedItem | None
    job: str | None
    is_requested: bool
    has_begun: bool

    def with_status(self, status: int) -> FinishedProcess:
        """Return the same with another status."""
        values = {name: getattr(self, name) for name in field_names(FinishedProcess)}
        return FinishedProcess(**{**values, "status": status})


class RunningJob(Generic[_Result]):
    """A running program. ``start`` returns it.

    ``with`` waits at the end of the block, and stops the program in order if an exception leaves the block. Iterating
    yields ``Progress``, ``FailedItem`` and ``Notice`` objects from now on, until the program has ended. ``await`` waits
    without blocking the event loop, which may also iterate (``async for``) and use ``async with``.
    """

    def __init__(self, request: Request[_Result], *, reads_output: bool = True) -> None:
        """Start the program. With ``reads_output=False`` the caller reads ``output``. Raise ``OSError``."""
        self._request = request
        self._lock = threading.RLock()
        self._listeners: list[Callable[[Event | None], object]] = []
        self._ended = threading.Event()
        self._progressed = threading.Event()
        self._last: Progress | None = None
        self._notices: deque[str] = deque(maxlen=_MOST_NOTICES)
        self._first_notices: list[str] = []
        self._summary: dict[str, Any] | None = None
        self._refusal: FailedItem | None = None
        self._is_stopped = False
        self._is_reported = False  # True if ``wait`` has raised the exception
        self._finished: FinishedProcess | Exception | None = None
        self._known_outcome: tuple[_Result | Exception] | None = None
        self._starter = os.getpid()
        self._output_error: Exception | None = None  # of the thread that reads the output
        self._list = None if request.listed is None else list_file(request.listed, request.launcher)
        try:
            self._process = start_process(request.program, request.words, request.launcher, self._list)
        except BaseException:
            self._close_list()
            raise
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._input: IO[bytes] = self._process.stdin
        self.output: BufferedReader = self._process.stdout  # type: ignore[assignment]
        try:
            self._start_reading(self._process.stderr, reads_output)
        except BaseException:
            self._abandon_process()
            raise

    def _start_reading(self, messages: IO[bytes], reads_output: bool) -> None:
        """Start the threads that read the child's outputs. Raise ``RuntimeError`` if the system allows no thread."""
        # Imported only now: it takes some milliseconds, in which the program starts. The threads themselves import
        # nothing: a process that is forked meanwhile would wait forever for the lock of the module.
        import json  # noqa: F401

        from pcopy.api.results import FailedItem, JsonLines

        self._lines: JsonLines[Any] = JsonLines(dict)
        self._failures: JsonLines[Any] = JsonLines(FailedItem.from_json)
        reader = threading.Thread(target=self._read_output, daemon=True) if reads_output else None
        threading.Thread(target=self._read_messages, args=(messages, reader), daemon=True).start()

    @property
    def name(self) -> str | None:
        """The name of the job, by which ``resume`` finds it; None if it is not recorded, or not yet known."""
        return self._request.job or (self._last.job if self._last else None)

    @property
    def pid(self) -> int:
        """The process, which leads a session and a process group of its own."""
        return self._process.pid

    @property
    def is_of_this_process(self) -> bool:
        """True if this process has started the program, and not one from which it was forked."""
        return os.getpid() == self._starter

    def done(self) -> bool:
        """Return True if the program has ended."""
        return self._ended.is_set()

    def progress(self) -> Progress | None:
        """Return the last progress; None if there is none yet."""
        return self._last

    def wait(self, timeout: float | None = None) -> _Result:
        """Wait until the program has ended, and return its result.

        Raise ``TimeoutError`` after ``timeout`` seconds; the program continues. Raise ``Error`` if it has not done all.
        If another exception is raised meanwhile, such as ``KeyboardInterrupt``, the program is stopped in order.
        """
        seconds = _checked_timeout(timeout)
        if not (self.is_of_this_process or self.done()):
            raise RuntimeError("a forked process cannot wait for a job of its parent")
        with self._stopping_on_error():
            if self._request.progress is None:
                self._ended.wait(seconds)
            else:
                for event in self._events(seconds, only_progress=True):
                    self._call_back(event)
        if not self.done():
            raise TimeoutError(f"{self._request.program} has not ended after {timeout} seconds")
        return self._result_or_error()

    def stop(self) -> None:
        """Have the program stop in order, and return at once. A recorded job is kept."""
        with self._lock:
            self._is_stopped = True
            if not self._input.closed:
                # The program also stops when its input holds data. A process that was forked from the caller has the
                # pipe too, so that closing it may have no effect.
                write_to_pipe(self._input.fileno(), b"\n")
                with suppress(OSError):
                    self._input.close()

    def kill(self) -> None:
        """Kill the program and its ranks on this host. Prefer ``stop``: what was not recorded yet is repeated."""
        with self._lock:
            self._is_stopped = True
            if self._process.returncode is None:  # Otherwise the number may be that of another process.
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    @refusing_unknown_keywords
    def control(
        self,
        *,
        bwlimit: int | str | None = None,
        oplimit: int | None = None,
        active: int | None = None,
        pause: bool | None = None,
    ) -> Progress:
        """Change the running job (``pcopy --control``), and return its progress after the change.

        ``bwlimit``: bytes per second; ``oplimit``: metadata operations per second; 0: no limit. ``active``: the number
        of ranks that work. ``pause``: True pauses, False continues. Wait for the first progress of the job, since its
        name is not known earlier, or for its end; in a coroutine, use ``asyncio.to_thread``. Raise ``Refused`` if the
        job is not recorded.
        """
        from pcopy.api.results import Progress

        _check_control_values(bwlimit, oplimit, active, pause)
        self._progressed.wait()
        if self.name is None or self.done():
            raise Refused(f"{self._request.program}: only a copy that is recorded and runs can be changed")
        changes = {"bwlimit": bwlimit, "oplimit": oplimit, "active": active}
        words = [f"{word}={value}".encode() for word, value in changes.items() if value is not None]
        words += [] if pause is None else [b"pause" if pause else b"resume"]
        command = [b"--json", b"--control=" + os.fsencode(self.name), *words]
        ended = run_command(command, "RunningJob.control")
        try:
            return Progress.from_json(ended.summary or {})
        except TypeError:  # A key is missing.
            raise InternalError("the output of pcopy --control is not complete", status=ended.status) from None

    def __repr__(self) -> str:
        return f"<RunningJob {self._request.program}: {self._state()}>"

    def _state(self) -> str:
        """Return the state for people."""
        if self.done():
            return f"failed: {self._outcome}" if isinstance(self._outcome, Exception) else "done"
        state = "stopping" if self._is_stopped else "running"
        last = self._last
        if last is None:
            return state
        return f"{state}, {last.phase}" + ("" if last.percent is None else f", {last.percent:.1f} %")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            with self._ignoring_known_error():
                self.wait()
            return
        with self._stopping_on_error():
            self.stop()
            self._ended.wait()
        self._note_kept_job(error)

    def __iter__(self) -> Iterator[Event]:
        return self._events(None)

    def __await__(self) -> Generator[Any, Any, _Result]:
        return self._wait_in_event_loop().__await__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            with self._ignoring_known_error():
                await self
            return
        self.stop()
        await self._end_in_event_loop()
        self._note_kept_job(error)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events_in_event_loop()

    async def _events_in_event_loop(self, *, only_progress: bool = False) -> AsyncIterator[Event]:
        import asyncio

        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        with self._queue(lambda: loop.call_soon_threadsafe(woken.set), only_progress) as events:
            count = 0
            while True:
                while (event := events.take()) is not None:
                    yield event
                    count += 1
                    if count % _EVENTS_BETWEEN_OTHER_TASKS == 0:
                        await asyncio.sleep(0)
                if events.is_exhausted:
                    return
                await woken.wait()
                woken.clear()

    async def _wait_in_event_loop(self) -> _Result:
        try:
            async for event in self._events_in_event_loop(only_progress=True):
                self._call_back(event)
        except Exception as error:  # of the function that receives the progress
            self.stop()
            await self._end_in_event_loop()
            self._note_kept_job(error)
            raise
        except BaseException:  # The task is cancelled: it must not wait.
            self.stop()
            raise
        return self._result_or_error()

    async def _end_in_event_loop(self) -> None:
        """Wait until the program has ended."""
        async for _ in self._events_in_event_loop(only_progress=True):
            pass

    @property
    def _outcome(self) -> _Result | Exception:
        """The result of a program that has ended, or its exception. It is determined in the caller's thread, since that
        imports modules.
        """
        with self._lock:
            if self._known_outcome is None:
                finished = self._finished
                assert finished is not None, "the program has not ended"
                self._known_outcome = (finished if isinstance(finished, Exception) else self._outcome_of(finished),)
            return self._known_outcome[0]

    def _result_or_error(self) -> _Result:
        """Return the result of the program, or raise its exception."""
        if isinstance(self._outcome, Exception):
            self._is_reported = True
            raise self._outcome
        return self._outcome

    @contextmanager
    def _ignoring_known_error(self) -> Iterator[None]:
        """Context manager for the end of a block: ignore an exception that ``wait`` has raised before, and ``Stopped``
        if the block has called ``stop``.
        """
        is_reported = self._is_reported
        try:
            yield
        except Error as error:
            if not (is_reported or (self._is_stopped and isinstance(error, Stopped))):
                raise

    def _call_back(self, event: Event) -> None:
        """Pass progress to the function of the caller."""
        from pcopy.api.results import Progress

        if self._request.progress is not None and isinstance(event, Progress):
            self._request.progress(event)

    def _events(self, timeout: float | None, *, only_progress: bool = False) -> Iterator[Event]:
        """Yield the events from now on, until the program has ended or ``timeout`` seconds have passed."""
        until = None if timeout is None else time.monotonic() + timeout
        woken = threading.Event()
        with self._queue(woken.set, only_progress) as events:
            while True:
                while (event := events.take()) is not None:
                    yield event
                    if until is not None and time.monotonic() >= until:
                        return
                if events.is_exhausted or not woken.wait(until and max(0.0, until - time.monotonic())):
                    return
                woken.clear()

    @contextmanager
    def _queue(self, wake: Callable[[], object], only_progress: bool) -> Iterator[EventQueue]:
        """Context manager for the queue of a consumer; ``wake`` is called when there is an event again."""
        from pcopy.api.events import EventQueue

        events = EventQueue(self._failures, self._lock, wake, only_progress=only_progress)
        with self._listening(events.put):
            yield events

    @contextmanager
    def _stopping_on_error(self) -> Iterator[None]:
        """Context manager: after an exception stop the program in order and wait; after another one, kill it. A note of
        the exception says how to resume the job.
        """
        try:
            yield
        except BaseException as error:
            self.stop()
            try:
                self._ended.wait()
            except BaseException:
                self.kill()
                raise
            self._note_kept_job(error)
            raise

    def _note_kept_job(self, error: BaseException | None) -> None:
        """Add to ``error``, because of which the program was stopped, how to resume the job."""
        if error is not None and isinstance(self._outcome, Stopped) and self._outcome.job is not None:
            error.add_note(f"the job is kept; to resume it: pcopy.resume({self._outcome.job!r})")

    @contextmanager
    def _listening(self, listener: Callable[[Event | None], object]) -> Iterator[None]:
        """Context manager: ``listener`` is called with each event, and with None when the program has ended."""
        with self._lock:
            self._listeners.append(listener)
            if self._ended.is_set():
                listener(None)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(listener)

    def _notify(self, event: Event | None) -> None:
        """Pass an event to all listeners; None: the program has ended."""
        with self._lock:
            if event is None:
                self._ended.set()
            for listener in tuple(self._listeners):
                with suppress(Exception):  # The event loop is closed, or memory is short; others are still called.
                    listener(event)

    def _read_output(self) -> None:
        """Read the JSON lines of standard output; the last one is the summary."""
        from json import loads

        last = b""
        try:
            with self.output as stream:
                for line in stream:
                    if last:
                        self._lines.append(last)
                    last = line
            with suppress(ValueError):
                summary = loads(last)
                self._summary = summary if isinstance(summary, dict) else None
        except Exception as error:
            self._output_error = error
            self.kill()

    def _read_messages(self, stream: IO[bytes], reader: threading.Thread | None) -> None:
        """Read standard error to its end, and find out how the program has ended. ``reader`` is the thread that reads
        standard output.

        Whatever fails here becomes the outcome, so that no caller waits forever.
        """
        try:
            self._finished = self._read_until_end(stream, reader)
        except Exception as error:
            self._finished = error
            with suppress(Exception):
                self._abandon_process(keeps_output=reader is None)
        finally:
            self._progressed.set()
            self._notify(None)

    def _read_until_end(self, stream: IO[bytes], reader: threading.Thread | None) -> FinishedProcess:
        """Read JSON lines with progress and failures, and messages. Return how the program has ended."""
        if reader is not None:
            reader.start()
        with stream:
            for line in stream:
                event = self._event_in_line(line)
                if event is not None:
                    self._notify(event)
        if reader is not None:
            reader.join()
        status = self._reaped_status()
        with self._lock, suppress(OSError):
            self._input.close()
        self._close_list()
        if self._output_error is not None:
            raise self._output_error
        return self._finished_process(status)

    def _outcome_of(self, finished: FinishedProcess) -> _Result | Exception:
        try:
            return self._request.finish(finished)
        except Exception as error:
            return error

    def _reaped_status(self) -> int | None:
        """Wait until the process has ended, and return its status; None if it is not known. ``kill`` uses the number of
        the process only before that.

        ``Popen.wait`` would return 0 if another part of the caller's process has waited for the child, for example a
        handler of SIGCHLD, or if SIGCHLD is ignored.
        """
        status = None
        with suppress(ChildProcessError):
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            if ended is not None:
                status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with self._lock:
            self._process.wait()
        return status

    def _abandon_process(self, *, keeps_output: bool = False) -> None:
        """Kill the process, wait for it, and close what belongs to it, unless the caller reads ``output``."""
        self.kill()
        self._reaped_status()
        output = None if keeps_output else self._process.stdout
        for stream in (self._process.stdin, output, self._process.stderr):
            with suppress(OSError, RuntimeError):
                if stream is not None:
                    stream.close()
        self._close_list()

    def _close_list(self) -> None:
        """Close the temporary file that lists paths; it is removed then."""
        if self._list is not None:
            with suppress(OSError):
                self._list.close()

    def _event_in_line(self, line: bytes) -> Event | None:
        """Return the event that a line of standard error describes; None for a refusal, which ``wait`` raises."""
        from json import loads

        from pcopy.api.results import FailedItem, Notice, Progress

        if line.startswith(b"{"):
            with suppress(ValueError, KeyError, TypeError):  # Not a line of this format: a line for people.
                values = loads(line)
                if "elapsed" in values:
                    self._last = Progress.from_json(values)
                    self._progressed.set()
                    return self._last
                failure = FailedItem.from_json(values)
                if failure.operation == _REFUSED_OPERATION:
                    self._refusal = failure
                    return None
                with self._lock:
                    self._failures.append(line)
                return failure
        text = line.decode(errors="backslashreplace").rstrip("\n")
        self._notices.append(text)
        if len(self._first_notices) < _MOST_LINES_OF_LAUNCHER and text.strip(" -=*"):
            self._first_notices.append(text)
        return Notice(text.removeprefix(f"{self._request.program}: "))

    def _finished_process(self, status: int | None) -> FinishedProcess:
        own, summary = self._own_lines(), self._summary
        has_begun = bool(own or summary or self._last or self._refusal or len(self._failures))
        message = "; ".join(own[-_MOST_NOTICES_IN_MESSAGE:]) or self._message_of_others()
        lines, failures, refusal, job = self._lines, self._failures, self._refusal, self._kept_job()
        return FinishedProcess(status, message, summary, lines, failures, refusal, job, self._is_stopped, has_begun)

    def _kept_job(self) -> str | None:
        """Return what ``resume`` finds the job by, after the program has ended; None if the job is not kept."""
        named, reported = self._request.job, self._last.job if self._last else None
        if self._summary is not None:
            job: str | None = self._summary.get("job")
            return job and (named or job)
        if named is None or reported is not None or not os.path.isabs(named):
            return named or reported
        return named if os.path.isdir(named) else None

    def _own_lines(self) -> list[str]:
        """Return the lines for people that the program has printed about the end of the job, without its name."""
        beginning = f"{self._request.program}: "
        own = [line.removeprefix(beginning) for line in self._notices if line.startswith(beginning)]
        return [line for line in own if not line.startswith(("to go on: ", "if ranks are lost: "))]

    def _message_of_others(self) -> str:
        """Return lines that the program has not printed itself: the first ones of a launcher, which say what is wrong,
        or the last ones of Python.
        """
        if self._request.launcher:
            return "\n".join(self._first_notices)
        return "; ".join([*self._notices][-_MOST_NOTICES_IN_MESSAGE:])


def run_command(words: Sequence[bytes], function: str) -> FinishedProcess:
    """Run ``pcopy`` with a command on stored jobs for ``function``, and return how it has ended. Raise ``Error`` if it
    failed.
    """

    def finish(ended: FinishedProcess) -> FinishedProcess:
        if ended.status == EXIT_OK:
            return ended
        kinds: dict[int | None, type[Error]] = {EXIT_INCOMPLETE: ItemsFailed, EXIT_REFUSED: Refused}
        from pcopy.api.wording import message_in_python, texts_of_caller

        message = message_in_python(ended.message, function, [*texts_of_caller(words)])
        if ended.status is None:
            message = f"the exit status of pcopy is lost: {WHY_STATUS_IS_LOST}"
        raise kinds.get(ended.status, InternalError)(message, status=ended.status)

    return RunningJob(Request("pcopy", words, finish)).wait()
