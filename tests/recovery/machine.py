"""Puts the real code of pcopy onto the simulated machine: its system calls, its clock and its threads.

All of pcopy reaches files by functions of ``os`` and ``fcntl``, by ``open``, and by six calls of the C library that
``os`` does not have. While all this is ``installed`` each of them looks who calls: a strand gets the simulated one (the
``calls`` of its world), everybody else the real one. Modules of pcopy that have bound such a function to a name of
their own get that exchanged as well.
"""

from __future__ import annotations

import builtins
import fcntl
import gc
import importlib
import io
import os
import pkgutil
import sys
import time
from _queue import SimpleQueue
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any

import pcopy
from pcopy import libc
from pcopy.background import BackgroundThread as RealThread
from pcopy.background import OneShotSignal as RealSignal
from pcopy.fsio import identity, naming, preserve, syncer
from pcopy.fsio.backend import _native
from tests.recovery.disk import USER
from tests.recovery.lookup import FIRST_DESCRIPTOR
from tests.recovery.native_calls import SimulatedLibrary, simulated_extension
from tests.recovery.world import BackgroundThread, Ended, Mutex, OneShotSignal, Queue, World, current

T0 = 1_700_000_000.0
"""When the world begins, in seconds since 1970."""

STATE_HOME = b"/home/.local/state"

_ENVIRONMENT = {b"XDG_STATE_HOME": STATE_HOME}

_REAL_FFI, _REAL_LIB = _native.ffi, _native.lib
"""The C backend of the package, which strands do not use."""

_OF_OS = (
    "access", "chmod", "chown", "close", "copy_file_range", "dup", "eventfd", "eventfd_read", "eventfd_write", "fchmod",
    "fchown", "fdatasync", "fstat", "fstatvfs",
    "fsync",    "ftruncate", "getxattr", "link", "listdir", "listxattr", "lseek", "lstat", "mkdir", "mknod", "open",
    "posix_fadvise", "pread", "preadv", "pwrite", "read", "readlink", "removexattr", "rename", "rmdir", "scandir",
    "setxattr", "stat", "statvfs", "symlink", "unlink", "utime", "write",
)  # fmt: skip
_OTHER_NAMES = {"fdatasync": "fsync", "fchmod": "chmod", "fchown": "chown", "fstatvfs": "statvfs"}

_UNWANTED = ("pcopy.engine.transports.mpi", "pcopy.__main__")


Simulated = Callable[[World], Callable[..., Any]]


def _exchanged(real: Callable[..., Any], simulated: Simulated) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if (strand := current()) is not None:
            return simulated(strand.world)(*arguments, **options)
        if arguments and type(arguments[0]) is int and arguments[0] >= FIRST_DESCRIPTOR:
            return None  # something of a world that has ended is given back, and closes its files
        return real(*arguments, **options)

    return call


def _by_name(name: str) -> Simulated:
    return lambda world: getattr(world.calls, name)


def _returning(value: Any) -> Simulated:
    return lambda world: lambda *_, **__: value


def _here() -> World:
    strand = current()
    assert strand is not None
    return strand.world


class _Syncer:
    """In the place of the process that syncs."""

    def start(self) -> None:
        pass

    def sync(self, descriptor: int, anchor: int = -1) -> None:
        _here().calls.syncfs(descriptor)

    def request_file_sync(self, descriptors: list[int]) -> None:
        """There is no process: a thread of the rank syncs files."""

    def close(self) -> None:
        pass


def _give_name(
    namer: naming.NonReplacingRenamer, flag: int, directory: int, temporary: bytes, device: int, name: bytes
) -> bool:
    given: bool = _here().calls.give_name(flag, directory, temporary, name)
    return given


def _table() -> list[tuple[Any, str, Simulated]]:
    """(where it is, its name, the simulated one)."""
    table: list[tuple[Any, str, Simulated]] = [(os, name, _by_name(_OTHER_NAMES.get(name, name))) for name in _OF_OS]
    return [
        *table,
        (builtins, "open", _by_name("file")),
        (os, "fdopen", _by_name("file")),
        (os, "geteuid", _returning(USER)),
        (os, "getegid", _returning(USER)),
        (os, "getcwdb", _returning(b"/")),
        (os, "getcwd", _returning("/")),
        (os, "umask", _returning(0o022)),
        (os, "urandom", lambda world: world.noise.randbytes),
        (os, "register_at_fork", _returning(None)),
        (fcntl, "flock", _by_name("flock")),
        (fcntl, "ioctl", _by_name("ioctl")),
        (time, "monotonic", lambda world: lambda: world.now),
        (time, "time", lambda world: lambda: world.now),
        (time, "time_ns", lambda world: lambda: int(world.now * 1e9)),
        (time, "sleep", lambda world: world.sleep),
        (libc, "birth_time", _by_name("birth_of")),
        (libc, "sync_file_range", _returning(None)),
        (identity, "identity_mark_of", _by_name("mark_of")),
        (libc, "type_of_file_system", _by_name("type_of_file_system")),
        (syncer, "sync_file_system", _by_name("syncfs")),
        (preserve, "has_capability", _returning(False)),
    ]


@cache
def modules() -> tuple[ModuleType, ...]:
    """All of pcopy, loaded: nothing is to be imported in the midst of a world."""
    names = [found.name for found in pkgutil.walk_packages(pcopy.__path__, "pcopy.")]
    return tuple(importlib.import_module(name) for name in names if name not in _UNWANTED)


@cache
def _users() -> tuple[tuple[ModuleType, str, int], ...]:
    """Every name in pcopy: (module, name, identity of its value)."""
    return tuple((module, name, id(value)) for module in modules() for name, value in vars(module).items())


def _unraisable(real: Callable[[Any], object], reported: Any) -> None:
    """A task that is given back when its world has ended wants to clear up, and can't: that is no news."""
    if not isinstance(reported.exc_value, Ended):
        real(reported)


_installed: list[str] = []


def installed_backend() -> str:
    """Return the name of the backend that strands use."""
    return _installed[-1] if _installed else "python"


@contextmanager
def installed(backend: str = "python", disabled_guards: str = "") -> Iterator[None]:
    """Makes it possible that strands run pcopy, with the C backend (``c``) or the one in Python.

    ``disabled_guards``: names of guards of the C backend that are disabled (``guards.h``), separated by commas.
    """
    changed: list[tuple[Any, str, Any]] = []

    def change(where: Any, name: str, value: Any) -> None:
        changed.append((where, name, vars(where)[name]))
        setattr(where, name, value)

    users = _users()
    gc.collect()
    gc.freeze()
    gc.disable()  # it would close files of strands, sooner or later
    before = dict(os.environb)
    environment = {**_ENVIRONMENT, b"PCOPY_BACKEND": backend.encode()}
    environment[b"PCOPY_TEST_DISABLED_GUARDS"] = disabled_guards.encode()
    os.environb.update(environment)
    try:
        for where, name, simulated in _table():
            real = getattr(where, name)
            call = _exchanged(real, simulated)
            change(where, name, call)
            for module, own, value in users:
                if value == id(real) and vars(module)[own] is real:
                    change(module, own, call)
        for real_class, simulated_class in _exchanged_values(backend, disabled_guards):
            for module, own, value in users:
                if value == id(real_class):
                    change(module, own, simulated_class)
        change(naming.NonReplacingRenamer, "_renameat2", _give_name)
        change(sys, "unraisablehook", partial(_unraisable, sys.unraisablehook))
        _installed.append(backend)
        yield
        _installed.pop()
    finally:
        forget()
        gc.enable()
        for variable in environment:
            del os.environb[variable]
        os.environb.update(before)
        for where, name, value in reversed(changed):
            setattr(where, name, value)


def _exchanged_values(backend: str, disabled_guards: str) -> Iterator[tuple[Any, Any]]:
    """Yield (what pcopy has, what strands use in its place)."""
    yield syncer.SyncHelperProcess, _Syncer
    yield RealThread, _background_thread
    yield RealSignal, _one_shot_signal
    yield SimpleQueue, _queue
    yield allocate_lock, _mutex
    if backend == "c":
        extension = simulated_extension(disabled_guards)
        yield _REAL_FFI, extension.ffi
        yield _REAL_LIB, SimulatedLibrary(extension)


def _background_thread(action: Callable[[], object]) -> BackgroundThread:
    return BackgroundThread(_here(), action)


def _mutex() -> Any:
    strand = current()
    return Mutex(strand.world) if strand is not None else allocate_lock()


def _one_shot_signal() -> Any:
    strand = current()
    return OneShotSignal(strand.world) if strand is not None else RealSignal()


def _queue() -> Any:
    strand = current()
    return Queue(strand.world) if strand is not None else SimpleQueue()


def forget() -> None:
    """What a process has asked the system once, the next one asks anew."""
    gc.collect()
    for cached in _caches():
        cached.cache_clear()


@cache
def _caches() -> tuple[Any, ...]:
    found = {
        id(value): value for module in modules() for value in vars(module).values() if hasattr(value, "cache_clear")
    }
    return tuple(found.values())


def spool(_: object = None) -> Callable[[], io.BytesIO]:
    """Files for what does not fit into memory: they end with the process, and need not be simulated."""
    return io.BytesIO
