"""The C backend on the simulated disk: the functions by which ``simulated.c`` answers the system calls of C.

``simulated_extension`` is the C backend with its system calls wrapped. Strands (``tests.recovery.world``) take the
place of its threads, so that any system call within a row may be the last one of the simulated process.
"""

from __future__ import annotations

import atexit
import errno
import importlib.util
import os
import re
import shutil
import stat
import struct
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from cffi import FFI

from pcopy.fsio.backend.build_native import COMPILER_FLAGS
from tests.recovery.world import Ended, Signal, Strand, World, current

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "pcopy/fsio/backend/native"

EXTENSION = "simulated_backend"

FLAGS = ("-DPIECE=64u", "-DMOST_LISTED=12", "-DPK_TEST_BUILD")
"""Compiler flags: sizes that are smaller than usual, so that few and small files reach every boundary, and guards that
can be disabled (``guards.h``).
"""

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_INTERFACE = re.compile(r"/\* begin of the interface \*/\n(.*?)/\* end of the interface \*/\n(.*?)#endif", re.DOTALL)
_WRAPPED = re.compile(r"^(?:WRAP\([^,]+, |LISTS\(|GETS\()(\w+),", re.MULTILINE)
_ENTRY = struct.Struct("=QqHB")
_ENTRY_TYPES = {stat.S_IFREG: 8, stat.S_IFDIR: 4, stat.S_IFLNK: 10, stat.S_IFIFO: 1, stat.S_IFSOCK: 12}
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_REMOVEDIR = -100, 0x100, 0x200


answer_counts: Counter[str] = Counter()
"""How often each function has answered a system call, and how often the process was killed in it (``ended in``)."""


def wrapped_functions() -> set[str]:
    """Return the names of the functions of the C library that ``simulated.c`` replaces."""
    return set(_WRAPPED.findall((HERE / "simulated.c").read_text()))


@cache
def _compiled_extension() -> Path:
    """Compile the extension, and return its path. Raise ``cffi.VerificationError`` without a C compiler."""
    found = _INTERFACE.search((HERE / "simulated.h").read_text())
    assert found is not None
    interface, callbacks = (_COMMENT.sub("", part) for part in found.groups())
    builder = FFI()
    builder.cdef(_COMMENT.sub("", (NATIVE / "backend.h").read_text()))
    builder.cdef(f'{interface}\nextern "Python+C" {{\n{callbacks}\n}}')
    builder.set_source(
        EXTENSION,
        '#include "simulated.h"',
        sources=[str(path) for path in (*sorted(NATIVE.glob("*.c")), HERE / "simulated.c")],
        include_dirs=[str(NATIVE), str(HERE)],
        extra_compile_args=[*COMPILER_FLAGS, *FLAGS],
        extra_link_args=["-pthread", *(f"-Wl,--wrap={name}" for name in wrapped_functions())],
        libraries=["dl"],
        py_limited_api=False,
    )
    directory = tempfile.mkdtemp(prefix="pcopy-test-compiled-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(builder.compile(tmpdir=directory))


@cache
def simulated_extension(disabled_guards: str = "") -> ModuleType:
    """Load the extension. ``disabled_guards``: names of guards, separated by commas. The environment has to disable
    them when the extension is first used; each value has a copy of its own, since C reads the environment once.
    """
    path = _compiled_extension()
    if disabled_guards:
        copy = path.with_name(f"{disabled_guards}.so")
        shutil.copy(path, copy)
        path = copy
    spec = importlib.util.spec_from_file_location(EXTENSION, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _Answers(module).define_callbacks()
    return module


class SimulatedLibrary:
    """In the place of ``_native.lib``: functions that make system calls raise ``Ended`` if these end the process."""

    def __init__(self, extension: ModuleType) -> None:
        self._lib, self._ended = extension.lib, extension.lib.SIM_ENDED

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def _checked(self, answer: int) -> int:
        if answer == self._ended:
            strand = current()
            if strand is not None and strand.world.troubles:
                raise RuntimeError(strand.world.troubles[-1])
            raise Ended
        return answer

    def pk_open(self, wake: int, digest: Any) -> Any:
        handle = self._lib.pk_open(wake, digest)
        _world().at_end.append(lambda: self._lib.sim_discard(handle))
        return handle

    def pk_poll(self, handle: Any, nanoseconds: int) -> None:
        _check_world()
        self._checked(self._lib.sim_poll(handle, nanoseconds))

    def pk_list(self, *arguments: Any) -> int:
        _check_world()
        return self._checked(self._lib.sim_list(*arguments))

    def pk_open_directory(self, *arguments: Any) -> int:
        _check_world()
        return self._checked(self._lib.sim_open_directory(*arguments))

    def pk_cancel(self, handle: Any, batch: Any) -> None:
        _check_world()
        self._lib.pk_cancel(handle, batch)

    def pk_close(self, handle: Any) -> None:
        """End the threads. The memory of the backend is released when the world has ended."""
        _check_world()
        self._checked(self._lib.sim_end_threads(handle))


def _check_world() -> None:
    """Raise ``Ended`` if a generator of a world that has ended is closed: no row of its backend ends any more."""
    strand = current()
    if strand is None or strand.world.is_over:
        raise Ended


def _world() -> World:
    strand = current()
    assert strand is not None
    return strand.world


class _Answers:
    """The functions ``sim_…``. Each returns what the system call returns, a negative errno, or ``SIM_ENDED``."""

    def __init__(self, extension: ModuleType) -> None:
        self._ffi, self._lib = extension.ffi, extension.lib

    def define_callbacks(self) -> None:
        for name in dir(type(self)):
            if name.startswith("sim_"):
                self._ffi.def_extern(name=name, error=-errno.EIO)(self._answering(getattr(self, name)))

    def _answering(self, function: Callable[..., int | None]) -> Callable[..., int]:
        ended = self._lib.SIM_ENDED

        @wraps(function)
        def answer(*arguments: Any) -> int:
            answer_counts[function.__name__] += 1
            try:
                return function(*arguments) or 0
            except OSError as error:
                return -(error.errno or errno.EIO)
            except Ended:
                answer_counts[f"ended in {function.__name__}"] += 1
            except BaseException as error:  # an error of the simulation
                _world().troubles.append(f"{function.__name__}: {error!r}")
            return int(ended)

        return answer

    def _path(self, text: Any) -> bytes:
        return bytes(self._ffi.string(text))

    def _copy_out(self, data: bytes, out: Any, size: int) -> int:
        """Store attributes as the system calls do: with a size of 0, only their length is returned."""
        if size and len(data) > size:
            raise OSError(errno.ERANGE, os.strerror(errno.ERANGE))
        self._ffi.memmove(out, data, len(data) if size else 0)
        return len(data)

    # Status.

    def sim_status(self, at: int, name: Any, flags: int, out: Any) -> None:
        found, birth = _world().calls.full_status(
            self._path(name), dir_fd=at, follow_symlinks=not flags & _AT_SYMLINK_NOFOLLOW
        )
        out.device, out.inode, out.links, out.special = found.st_dev, found.st_ino, found.st_nlink, found.st_rdev
        out.size, out.blocks, out.mode, out.uid, out.gid = (
            *(found.st_size, found.st_blocks, found.st_mode, found.st_uid, found.st_gid),
        )
        out.atime, out.mtime, out.ctime = found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns
        out.birth = birth

    def sim_file_system(self, file: int) -> int:
        return int(_world().calls.type_of_file_system(file))

    def sim_handle(self, file: int, out: Any, size: int) -> int:
        mark: bytes = _world().calls.mark_of(file, created_by_job=True)
        return self._copy_out(mark[5:], out, size)

    def sim_entries(self, directory: int, out: Any, size: int) -> int:
        packed = b""
        for number, mode, name in _world().calls.entries(directory):
            length = -(-(_ENTRY.size + len(name) + 1) // 8) * 8
            packed += _ENTRY.pack(number, 0, length, _ENTRY_TYPES.get(stat.S_IFMT(mode), 0)) + name
            packed += bytes(length - _ENTRY.size - len(name))
        assert len(packed) <= size
        self._ffi.memmove(out, packed, len(packed))
        return len(packed)

    # Names.

    def sim_open(self, at: int, name: Any, flags: int, mode: int) -> int:
        return int(_world().calls.open(self._path(name), flags, mode, dir_fd=None if at == _AT_FDCWD else at))

    def sim_close(self, file: int) -> None:
        _world().calls.close(file)

    def sim_make_directory(self, at: int, name: Any, mode: int) -> None:
        _world().calls.mkdir(self._path(name), mode, dir_fd=at)

    def sim_unlink(self, at: int, name: Any, flags: int) -> None:
        calls = _world().calls
        (calls.rmdir if flags & _AT_REMOVEDIR else calls.unlink)(self._path(name), dir_fd=at)

    def sim_rename(self, before: int, old: Any, after: int, new: Any) -> None:
        _world().calls.rename(self._path(old), self._path(new), src_dir_fd=before, dst_dir_fd=after)

    def sim_link_target(self, at: int, name: Any, out: Any, size: int) -> int:
        target: bytes = _world().calls.readlink(self._path(name), dir_fd=at)
        self._ffi.memmove(out, target, min(len(target), size))
        return min(len(target), size)

    # Contents.

    def sim_read(self, file: int, out: Any, size: int) -> int:
        data: bytes = _world().calls.read(file, size)
        self._ffi.memmove(out, data, len(data))
        return len(data)

    def sim_write(self, file: int, data: Any, size: int) -> int:
        calls, written = _world().calls, bytes(self._ffi.buffer(data, size))
        if file in calls.wakes:
            calls.eventfd_write(file, 1)
            return size
        return int(calls.write(file, written))

    def sim_seek(self, file: int, at: int, whence: int) -> int:
        return int(_world().calls.lseek(file, at, whence))

    def sim_sync(self, file: int) -> None:
        _world().calls.fsync(file)

    # Metadata.

    def sim_change_mode(self, at: int, path: Any, mode: int) -> None:
        _world().calls.chmod(self._path(path) or at, mode)

    def sim_change_owner(self, file: int, uid: int, gid: int) -> None:
        _world().calls.chown(b"", uid, gid, dir_fd=file)

    def sim_change_times(self, at: int, path: Any, atime: int, mtime: int) -> None:
        calls, omitted = _world().calls, self._lib.SIM_OMIT
        where = self._path(path) or at
        if omitted in (atime, mtime):
            present = calls.stat(where)
            atime, mtime = (
                present.st_atime_ns if atime == omitted else atime,
                present.st_mtime_ns if mtime == omitted else mtime,
            )
        calls.utime(where, ns=(atime, mtime))

    def sim_attribute_names(self, at: int, path: Any, follow: int, out: Any, size: int) -> int:
        where = self._path(path)
        names = _world().calls.listxattr(where or at, follow_symlinks=bool(follow) or not where)
        return self._copy_out(b"".join(os.fsencode(name) + b"\0" for name in names), out, size)

    def sim_attribute(self, at: int, path: Any, follow: int, name: Any, out: Any, size: int) -> int:
        where = self._path(path)
        value: bytes = _world().calls.getxattr(where or at, self._path(name), follow_symlinks=bool(follow) or not where)
        return self._copy_out(value, out, size)

    def sim_set_attribute(self, file: int, name: Any, value: Any, size: int) -> None:
        _world().calls.setxattr(file, self._path(name), bytes(self._ffi.buffer(value, size)))

    def sim_remove_attribute(self, file: int, name: Any) -> None:
        _world().calls.removexattr(file, self._path(name))

    # Time and threads.

    def sim_clock(self, is_monotonic: int) -> int:
        """Operations need no processor time in the simulation."""
        return int(_world().now * 1e9) if is_monotonic else 0

    def sim_start_thread(self, run: Any, argument: Any) -> int:
        world = _world()
        world.threads.append(world.spawn_beside(lambda: self._lib.sim_run_thread(run, argument)))
        return len(world.threads)

    def sim_join_thread(self, thread: int) -> None:
        strand: Strand = _world().threads[thread - 1]
        while not strand.is_over:
            strand.over.wait()

    def sim_wait_for(self, condition: Any) -> None:
        self._signal(condition).wait()

    def sim_wake_waiting(self, condition: Any, all_threads: int) -> None:
        """Wake the threads that wait. POSIX allows that more of them wake up than are signalled."""
        self._signal(condition).set()

    def _signal(self, condition: Any) -> Signal:
        world = _world()
        key = int(self._ffi.cast("uintptr_t", condition))
        return world.conditions.setdefault(key, Signal(world))
