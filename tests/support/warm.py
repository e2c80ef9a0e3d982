"""Runs that are forked from a process which has imported the program, because a short run spends most time starting.

Such a run is a process like any other: a child of the caller (``CLONE_PARENT``), with its own arguments, environment,
working directory, umask and standard streams, and with the default signal handlers of the interpreter. It closes the
descriptors of the server. Its token is found in /proc, which shows the memory of the server's initial environment.
strace is attached before the run begins, so that it records all calls except those of the start.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import io
import os
import pickle
import pkgutil
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple, NoReturn

TOKEN = "PCOPY_TEST_TOKEN"
"""The variable that marks the environment of every process of a run, so that survivors can be found."""

TOKEN_LENGTH = 32
GO = signal.SIGUSR2
"""The signal that notifies a run that strace is attached. It is blocked until then, so that it cannot arrive too
early.
"""

_PID = struct.Struct("=i")
_CLONE_PARENT = 0x8000
_PR_SET_DUMPABLE = 4
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}


def is_possible() -> bool:
    return os.uname().machine in _SYS_CLONE


class Request(NamedTuple):
    """The parameters of a run in addition to its standard streams."""

    program: str
    arguments: list[str | bytes]
    environment: dict[str, str]
    directory: str | bytes
    umask: int
    """-1: that of the caller."""

    traced: bool
    user: int | None = None
    """User and group; None: those of the caller."""

    groups: Sequence[int] = ()


class Server:
    """The client side of a server."""

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        here, there = socket.socketpair()
        own = {**environment, TOKEN: "0" * TOKEN_LENGTH}
        code = "import sys; sys.path.append(sys.argv[1]); from tests.support.warm import serve; serve(int(sys.argv[2]))"
        with there:
            self._process = subprocess.Popen(
                [python, "-c", code, _repository(), str(there.fileno())],
                env=own,
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                cwd="/",
            )
        self._socket = here
        self._turn = threading.Lock()

    def fork(self, request: Request, streams: Sequence[int]) -> int:
        """Start a run and return its process id, which is a child of this process."""
        reported = os.memfd_create("request")
        try:
            os.write(reported, pickle.dumps(request))
            with self._turn:
                socket.send_fds(self._socket, [b"\0"], [reported, *streams])
                answer = self._socket.recv(_PID.size, socket.MSG_WAITALL)
        finally:
            os.close(reported)
        if len(answer) < _PID.size:
            raise RuntimeError("the process that runs are forked from has ended")
        (process,) = _PID.unpack(answer)
        return int(process)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class Program(subprocess.Popen[bytes]):
    """A run that is forked by a server, with strace attached if arguments for it are given."""

    def __init__(self, server: Server, request: Request, strace: Sequence[Any], **streams: Any) -> None:
        self._server, self._request, self._strace = server, request, strace
        self._tracer: subprocess.Popen[bytes] | None = None
        super().__init__(["pcopy", *request.arguments], **streams)

    def _execute_child(self, *arguments: Any) -> None:
        """Replaces fork and exec; ``Popen`` has created the pipes by then, and closes them on our side."""
        ours = dict(zip(_PARAMETERS, arguments, strict=True))
        pipes = [ours[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        streams = [pipes[0], pipes[3], pipes[5]]
        self.pid = self._server.fork(self._request, [number if at < 0 else at for number, at in enumerate(streams)])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        if self._strace:
            self._tracer = _attach(self._strace, self.pid)
            os.kill(self.pid, GO)

    def poll(self) -> int | None:
        """Return the status once strace has ended, too: by then the log is complete."""
        if self._tracer is not None and self._tracer.poll() is None:
            return None
        return super().poll()

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        if self._tracer is not None:
            try:
                self._tracer.wait(timeout)
            except subprocess.TimeoutExpired as expired:
                raise subprocess.TimeoutExpired(self.args, expired.timeout) from None
        return super().wait(None if until is None else max(0.0, until - time.monotonic()))


_PARAMETERS = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]


def _attach(strace: Sequence[Any], process: int) -> subprocess.Popen[bytes]:
    line = [word for word in strace if word not in ("-qq", "--seccomp-bpf")]
    tracer = subprocess.Popen(
        [*line, "-p", str(process)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert tracer.stderr is not None
    reported = tracer.stderr.readline()
    assert b"attached" in reported, reported
    threading.Thread(target=_drain, args=(tracer.stderr,), daemon=True).start()
    return tracer


def _drain(stream: IO[bytes]) -> None:
    with stream:
        while stream.read(4096):
            pass


def _repository() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


# The server side.


def serve(number: int) -> NoReturn:
    """Fork a run for each request, until all clients have closed the connection."""
    _load()
    signal.pthread_sigmask(signal.SIG_BLOCK, [GO])
    gc.collect()
    gc.freeze()
    asking = socket.socket(fileno=number)
    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(asking, 1, 4)
        except KeyboardInterrupt:
            os._exit(130)
        if not descriptors:
            os._exit(0)
        process = _fork()
        if process == 0:
            asking.close()
            _become(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        asking.send(_PID.pack(process))


def _load() -> None:
    """Import all modules that a run may need, except those of MPI and those that start threads."""
    import pcopy

    for module in pkgutil.walk_packages(pcopy.__path__, "pcopy."):
        if not re.search(r"mpi|simulat|parquet|__main__|build_native", module.name):
            with suppress(ImportError):
                importlib.import_module(module.name)
    for name in ("argparse", "blake3", "ctypes", "gettext", "lmdb", "subprocess", "xxhash"):
        with suppress(ImportError):
            importlib.import_module(name)


def _fork() -> int:
    """Like ``os.fork``, but the new process gets the parent of this one."""
    call = ctypes.PyDLL(None).syscall
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    process = int(call(_SYS_CLONE[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if process:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    return process


def _become(reported: int, *streams: int) -> NoReturn:
    """Turn the new process into the run."""
    try:
        with open(reported, "rb") as file:
            file.seek(0)
            request: Request = pickle.loads(file.read())
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, max(streams) + 1)
        _take_environment(request.environment)
        os.chdir(request.directory)
        if request.umask >= 0:
            os.umask(request.umask)
        time.tzset()
        if request.user is not None:
            _become_user(request.user, request.groups)
        sys.argv = [request.program, *map(os.fsdecode, request.arguments)]
        sys.stdin, sys.stdout, sys.stderr = (_opened(number) for number in range(3))
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
        if request.traced:
            signal.sigwait([GO])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [GO])
        from pcopy.cli import script

        getattr(script, request.program)()
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="backslashreplace"))
    os._exit(99)


def _become_user(user: int, groups: Sequence[int]) -> None:
    """Change the user like setpriv: drop all capabilities, and make /proc/self belong to the user."""
    os.setgroups(groups)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def _take_environment(environment: Mapping[str, str]) -> None:
    token = environment[TOKEN].encode()
    assert len(token) == TOKEN_LENGTH
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    ctypes.memmove(getenv(TOKEN.encode()), token, TOKEN_LENGTH)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _opened(number: int) -> io.TextIOWrapper:
    """Open a standard stream as Python does."""
    like = (sys.stdin, sys.stdout, sys.stderr)[number]
    buffer = open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115
    lines = number == 2 or buffer.isatty()
    return io.TextIOWrapper(buffer, encoding=like.encoding, errors=like.errors, line_buffering=lines)
