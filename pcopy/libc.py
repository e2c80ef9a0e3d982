"""Functions of the C library that Python's ``os`` lacks, and all else that needs ctypes: no other module imports that.

ctypes is loaded by the first call, because loading it takes as long as the copy of many small files. All functions
raise ``OSError``: with ENOSYS where the C library does not have the call (some came to glibc in 2018).
"""

from __future__ import annotations

import errno
import os
import struct
import sys

TYPE_CHECKING = False  # typing's: the process that syncs (pcopy.fsio.syncer) loads this, and hardly anything else
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from ctypes import CDLL
    from typing import Any

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
"""For ``renameat2``."""

WAIT_BEFORE, WRITE, WAIT_AFTER = 1, 2, 4
"""For ``sync_file_range``."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Of fallocate(2), from linux/falloc.h."""

_AT_SYMLINK_NOFOLLOW = 0x100
_AT_EMPTY_PATH = 0x1000
_AT_STATX_FORCE_SYNC = 0x2000
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_FNM_CASEFOLD = 16
"""From the headers of Linux: fcntl.h, prctl.h, signal.h and fnmatch.h."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST_THRESHOLD = 32 << 20
"""Of mallopt(3), from malloc.h; the last one takes no more."""

_STATX_BYTES = 256
_STATX_MTIME = 0x40
_STATX_BTIME = 0x800
_STATX_MNT_ID = 0x1000
"""Of statx(2): the size of its structure, and the bits that ask for the time of birth, and for the mount."""
_MOUNT = struct.Struct("=I140xQ")  # stx_mask, and stx_mnt_id
_MTIME = struct.Struct("=112xqI")  # stx_mtime
_BTIME = struct.Struct("=I76xqI")  # struct statx: stx_mask, and far behind it stx_btime

FUSE = 0x65735546
"""The f_type of file systems on FUSE (linux/magic.h)."""
_STATFS_BYTES = 256  # more than struct statfs has anywhere
_ENTRIES_BYTES = 1 << 16  # of a listing, read by one call
_ENTRY = struct.Struct("=16xHB")  # struct dirent64: d_reclen and d_type, before d_name
_HANDLE = struct.Struct("=Ii")  # struct file_handle: handle_bytes, handle_type, and then the handle
_MOST_BYTES = 128  # MAX_HANDLE_SZ
_NEW_HANDLE = _HANDLE.pack(_MOST_BYTES, 0) + bytes(_MOST_BYTES)


def renameat2(directory: int, old: bytes, new: bytes, flags: int, to: int = -1) -> None:
    """renameat2(2) within one directory (a descriptor), or ``to`` another one."""
    _call("renameat2", directory, old, directory if to < 0 else to, new, flags)


def fnmatch(pattern: bytes, name: bytes, *, folds: bool) -> bool:
    """fnmatch(3): does the pattern of the shell match all of ``name``? ``folds``: whatever the case of letters."""
    return not _libc().fnmatch(pattern, name, _FNM_CASEFOLD if folds else 0)


def syncfs(descriptor: int) -> None:
    """syncfs(2)."""
    _call("syncfs", descriptor)


def fallocate(descriptor: int, start: int, length: int) -> None:
    """fallocate(2), which makes room for data; the size of the file stays. (posix_fallocate(3) would write zeros where
    that is not supported.)

    A size that includes room for data that are not written yet would survive a loss of power without these data.
    """
    from ctypes import c_int64

    _call("fallocate", descriptor, _KEEP_SIZE, c_int64(start), c_int64(length))


def punch(descriptor: int, start: int, length: int) -> None:
    """fallocate(2), which takes data away: what was there reads as zeros. The size of the file stays."""
    from ctypes import c_int64

    _call("fallocate", descriptor, _KEEP_SIZE | _PUNCH_HOLE, c_int64(start), c_int64(length))


def sync_file_range(descriptor: int, start: int, length: int, flags: int) -> None:
    """sync_file_range(2)."""
    from ctypes import c_int64

    _call("sync_file_range", descriptor, c_int64(start), c_int64(length), flags)


def birth_of(directory: int, name: bytes) -> int:
    """When ``name`` in the directory (a descriptor), or without a name that itself, was made, as statx(2) tells it.

    In nanoseconds since 1970; 0 where its file system does not keep that.
    """
    buffer = _buffer(_STATX_BYTES)
    _call("statx", directory, name, _AT_SYMLINK_NOFOLLOW | _AT_EMPTY_PATH, _STATX_BTIME, buffer)
    mask, seconds, nanoseconds = _BTIME.unpack_from(buffer.raw)
    return seconds * 10**9 + nanoseconds if mask & _STATX_BTIME else 0


def mtime_of(descriptor: int) -> int:
    """Return the time of modification of something open in nanoseconds since 1970, as its server has it now
    (statx(2))."""
    buffer = _buffer(_STATX_BYTES)
    _call("statx", descriptor, b"", _AT_EMPTY_PATH | _AT_STATX_FORCE_SYNC, _STATX_MTIME, buffer)
    seconds, nanoseconds = _MTIME.unpack_from(buffer.raw)
    return int(seconds * 10**9 + nanoseconds)


def mount_of(descriptor: int) -> int:
    """The mount (mnt_id) in which something open lies, as statx(2) tells it since Linux 5.8; -1 if it does not."""
    buffer = _buffer(_STATX_BYTES)
    _call("statx", descriptor, b"", _AT_EMPTY_PATH, _STATX_MNT_ID, buffer)
    mask, number = _MOUNT.unpack_from(buffer.raw)
    return int(number) if mask & _STATX_MNT_ID else -1


def free_bytes(there: os.statvfs_result, *, reserved: bool = False) -> int:
    """Return the bytes that are left; ``reserved``: with those that only root may use.

    Raises ``OSError`` if the file system reports that it has no blocks at all: its size is unknown, and it is not full.
    """
    if not there.f_blocks:
        raise OSError(errno.ENODATA, "the file system does not report its size")
    return (there.f_bfree if reserved else there.f_bavail) * there.f_frsize


def type_of_file_system(descriptor: int) -> int:
    """Return the f_type of statfs(2); FUSE's where statfs is not implemented, since only a FUSE server may lack it."""
    buffer = _buffer(_STATFS_BYTES)
    while True:
        try:
            _call("fstatfs", descriptor, buffer)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            return FUSE
        # f_type is the first field: a long, but on s390 an unsigned int.
        width = 4 if os.uname().machine.startswith("s390") else struct.calcsize("l")
        return int.from_bytes(buffer.raw[:width], sys.byteorder)


def types_in(directory: int) -> dict[bytes, int]:
    """Return the type (as in ``stat.S_IFMT``; 0: unknown) of each name in a directory, from its listing position on
    (getdents64(2))."""
    import ctypes

    list_some = getattr(_libc(), "getdents64", None)
    if list_some is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    buffer, types = _buffer(_ENTRIES_BYTES), dict[bytes, int]()
    while (size := list_some(directory, buffer, _ENTRIES_BYTES)) > 0:
        entries, at = buffer.raw[:size], 0
        while at < size:
            length, type_ = _ENTRY.unpack_from(entries, at)
            types[entries[at + _ENTRY.size : at + length].partition(b"\0")[0]] = type_ << 12
            at += length
    if size < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return types


def file_handle(descriptor: int) -> bytes:
    """The file handle of name_to_handle_at(2): its type in four bytes, and what follows that."""
    if not _asked:
        _asked.append(_asking_for_handles())
    return _asked[0](descriptor)


_asked: list[Callable[[int], bytes]] = []


def never_freed(thing: object) -> None:
    """What ``thing`` refers to stays in memory until the process ends, since others may still write to it."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def keep_freed_memory(most: int) -> None:
    """What is freed stays with this process, up to ``most`` bytes, and is used again: see mallopt(3).

    Without this glibc gives back each large block, and the kernel fills it with zeros, page by page, when it is wanted
    again. That takes several times as long as to copy data into it. Does nothing where there is another C library.
    """
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, most)
        mallopt(_M_TOP_PAD, most // 4)


def end_with_parent() -> None:
    """From now on the kernel kills this process when the thread that has started it ends; see prctl(2)."""
    _call("prctl", _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


class handled_in_c:  # noqa: N801 (it reads as a statement does)
    """As long as the block takes, C itself calls ``handler`` when the signal ``number`` arrives.

    Python's own handlers run between two steps of the interpreter only; this one runs within a call that never returns.
    """

    def __init__(self, number: int, handler: Callable[[int], None]) -> None:
        self._number, self._handler = number, handler

    def __enter__(self) -> None:
        import ctypes

        self._called = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._handler)  # lives as long as it is set
        self._set_handler = ctypes.CDLL(None).signal
        self._set_handler.argtypes, self._set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        self._before = self._set_handler(self._number, ctypes.cast(self._called, ctypes.c_void_p))

    def __exit__(self, *_: object) -> None:
        self._set_handler(self._number, self._before)


def symbols_of(library: str, names: Iterable[str]) -> set[str]:
    """Those of ``names`` that the shared library defines, or a library that it is linked with; this loads it."""
    import ctypes

    loaded = ctypes.CDLL(library)
    return {name for name in names if hasattr(loaded, name)}


def _libc() -> CDLL:
    if not _loaded:
        import ctypes

        _loaded.append(ctypes.CDLL(None, use_errno=True))
    return _loaded[0]


_loaded: list[CDLL] = []
"""Empty until the first call."""


def _buffer(size: int) -> Any:
    import ctypes

    return ctypes.create_string_buffer(size)


def _call(name: str, *arguments: Any) -> None:
    import ctypes

    function: Callable[..., int] | None = getattr(_libc(), name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(*arguments):
        number = ctypes.get_errno() or errno.EIO
        raise OSError(number, os.strerror(number))


def _asking_for_handles() -> Callable[[int], bytes]:
    """What does not change is prepared once: an item that is made costs one of these calls."""
    import ctypes

    new_buffer = (ctypes.c_char * len(_NEW_HANDLE)).from_buffer_copy
    mount = ctypes.byref(ctypes.c_int())  # its number is a host's own, and nobody looks at it

    def ask(descriptor: int) -> bytes:
        buffer = new_buffer(_NEW_HANDLE)
        _call("name_to_handle_at", descriptor, b"", buffer, mount, _AT_EMPTY_PATH)
        raw: bytes = buffer.raw
        return raw[4 : _HANDLE.size + _HANDLE.unpack_from(raw)[0]]

    return ask
