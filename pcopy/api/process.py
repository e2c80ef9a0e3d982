"""The child process of a running job: its start, its pipes, and the file that lists paths for it.

Rules:

- The child is started by ``subprocess``, in a session of its own, without code of the caller between fork and exec.
- An output ends when its last writer closes it, or shortly after the end of the child: a launcher may leave processes
  behind that have the output, too.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from io import BufferedReader, FileIO, RawIOBase
from subprocess import PIPE, Popen

from pcopy.api.environment import child_environment
from pcopy.api.errors import Error
from pcopy.api.typing_names import cast

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING

if TYPE_CHECKING:
    from typing import IO

    from _typeshed import WriteableBuffer

CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
"""The file that the child process runs."""

_FLAGS = {
    "isolated": "-I",
    "ignore_environment": "-E",
    "no_user_site": "-s",
    "dont_write_bytecode": "-B",
    "dev_mode": "-Xdev",
}
"""The options of Python that the child gets if the caller has them, by their names in ``sys.flags``. It does not get
-O, because the programs contain assertions, and neither -W nor -S, which concern the caller's own modules.
"""
_STANDARD_ERROR = 2
"""The highest descriptor of a standard stream."""
_SECONDS_AFTER_END = 1.0
"""How long an output may stay open after the end of the child."""
_SECONDS_BETWEEN_LOOKS = 0.1
"""How often the end of the child is looked for where the system has no descriptors of processes (before Linux 5.3)."""


def start_process(
    program: str, words: Sequence[bytes], launcher: Sequence[str | bytes], list_file: IO[bytes] | None
) -> Popen[bytes]:
    """Start a program with the arguments ``words``, and return its process. Raise ``OSError``, or ``Error`` if the
    caller has no Python that could run it.
    """
    words, descriptors = [*words], []
    if list_file is not None:
        descriptors = [list_file.fileno()]
        name = os.fsencode(list_file.name) if launcher else b"/dev/fd/%d" % descriptors[0]
        words = [b"--null", b"--from=" + name, *words]
    process = Popen(
        [*launcher, _interpreter(), *_interpreter_options(), "-P", CHILD, program, *words],
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=child_environment(os.environ),
        start_new_session=True,
        pass_fds=descriptors,
    )
    process.stdout = BufferedReader(_Output(process, process.stdout))
    process.stderr = BufferedReader(_Output(process, process.stderr))
    return process


def _interpreter() -> str:
    """Return the Python that runs this process. Raise ``Error`` if another program has it embedded."""
    executable = sys.executable or ""
    names = (os.path.basename(executable), os.path.basename(os.path.realpath(executable)))
    if getattr(sys, "frozen", False) or not any("py" in name.lower() for name in names):
        raise Error(f"sys.executable names no Python that could run the programs: {executable!r}")
    return executable


def _interpreter_options() -> list[str]:
    """Return the options of Python by which the child loads modules from the same places as this process, and encodes
    names in the same way.
    """
    utf8 = [f"-Xutf8={sys.flags.utf8_mode:d}"] if "utf8" in sys._xoptions else []
    return [word for name, word in _FLAGS.items() if getattr(sys.flags, name)] + utf8


class _Output(RawIOBase):
    """The end of a pipe from which an output of a process is read."""

    def __init__(self, process: Popen[bytes], pipe: IO[bytes] | None) -> None:
        self._process = process
        self._pipe = cast(FileIO, cast(BufferedReader, pipe).detach())
        self._process_descriptor: int | None = None
        self._until: float | None = None
        """When the output counts as ended, once the process has ended."""
        self._poll = select.poll()
        self._poll.register(self._pipe, select.POLLIN)
        # A process that is no longer there has no descriptor: the caller ignores SIGCHLD.
        with suppress(OSError, AttributeError):
            self._process_descriptor = os.pidfd_open(process.pid)
            self._poll.register(self._process_descriptor, select.POLLIN)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._pipe.fileno()

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        return self._pipe.readinto(buffer) if self._wait() else 0

    def _wait(self) -> bool:
        """Wait for data or the end of the pipe. Return False if the process has ended, and neither comes."""
        interval = None if self._process_descriptor is not None else _SECONDS_BETWEEN_LOOKS * 1000
        pipe = self._pipe.fileno()
        while self._until is None:
            ready = [descriptor for descriptor, _ in self._poll.poll(interval)]
            if pipe in ready:
                return True
            if ready or self._has_ended():
                self._until = time.monotonic() + _SECONDS_AFTER_END
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        return bool(poll.poll(max(0.0, self._until - time.monotonic()) * 1000))

    def _has_ended(self) -> bool:
        """Return True if the process has ended. It is not reaped."""
        if self._process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def close(self) -> None:
        if not self.closed:
            self._pipe.close()
            if self._process_descriptor is not None:
                os.close(self._process_descriptor)
        super().close()


def write_to_pipe(descriptor: int, data: bytes) -> None:
    """Write ``data``, which the pipe can hold. Do nothing if no process reads it any more, even if the caller has not
    left SIGPIPE ignored, as Python does.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
    try:
        os.write(descriptor, data)
    except OSError:
        if signal.SIGPIPE not in blocked:
            signal.sigtimedwait([signal.SIGPIPE], 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def list_file(paths: Sequence[bytes], launcher: Sequence[str | bytes]) -> IO[bytes]:
    """Return a temporary file that lists ``paths``. The child inherits its descriptor; ranks that a launcher starts
    open the file by its name instead.
    """
    from tempfile import NamedTemporaryFile, TemporaryFile

    file: IO[bytes] = NamedTemporaryFile(prefix="pcopy-list-") if launcher else TemporaryFile()  # noqa: SIM115
    if not launcher:
        file = _above_standard_streams(file)
    file.write(b"".join(path + b"\0" for path in paths))
    file.seek(0)
    return file


def _above_standard_streams(file: IO[bytes]) -> IO[bytes]:
    """Return a file whose number is not that of a standard stream, which the child needs: the caller may have closed
    its own ones.
    """
    if file.fileno() > _STANDARD_ERROR:
        return file
    import fcntl

    with file:
        return os.fdopen(fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, _STANDARD_ERROR + 1), "w+b")
