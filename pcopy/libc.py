"""Functions of the C library that Python's ``os`` does not have, and everything else that needs ctypes.

No other module imports ctypes. The first call of a function here loads it, because that takes as long as the copy of
many small files. Functions that make a system call raise ``OSError``, with ENOSYS if the C library does not have the
function (glibc got some of them in 2018).
"""

from __future__ import annotations

import errno
import os
import struct
import sys

# Replaces typing.TYPE_CHECKING, so that typing is not imported: the helper process of pcopy.fsio.syncer imports this
# module, and must start quickly.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from ctypes import CDLL
    from typing import Any

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
"""``RENAME_NOREPLACE``: flag of ``renameat2``: fail if the new name exists. ``RENAME_EXCHANGE``: exchange the two
names.
"""

SYNC_RANGE_WAIT_BEFORE, SYNC_RANGE_WRITE, SYNC_RANGE_WAIT_AFTER = 1, 2, 4
"""Flags of ``sync_file_range``: wait for earlier writes, begin to write, wait for these writes."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Modes of fallocate(2), from linux/falloc.h: do not change the size of the file; deallocate the range."""

_AT_SYMLINK_NOFOLLOW = 0x100
_AT_EMPTY_PATH = 0x1000
_AT_STATX_FORCE_SYNC = 0x2000
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_FNM_CASEFOLD = 16
"""This constant and those above it are from Linux's headers fcntl.h, prctl.h, signal.h and fnmatch.h."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MAX_MMAP_THRESHOLD = 32 << 20
"""Parameters of mallopt(3), from malloc.h; this one is the largest value that M_MMAP_THRESHOLD accepts."""

_STATX_BYTES = 256
_STATX_MTIME = 0x40
_STATX_BTIME = 0x800
_STATX_MNT_ID = 0x1000
"""Constants of statx(2), from ``_STATX_BYTES``: the size of its structure, and the bits that request modification time,
birth time and mount id.
"""
_STATX_MOUNT_FIELDS = struct.Struct("=I140xQ")  # struct statx: stx_mask and stx_mnt_id
_STATX_MTIME_FIELDS = struct.Struct("=112xqI")  # struct statx: stx_mtime
_STATX_BTIME_FIELDS = struct.Struct("=I76xqI")  # struct statx: stx_mask and stx_btime

FUSE_TYPE = 0x65735546
"""The type of FUSE file systems in statfs(2) (FUSE_SUPER_MAGIC of linux/magic.h)."""
_STATFS_BYTES = 256  # larger than struct statfs on any architecture
_LISTING_BYTES = 1 << 16  # bytes of directory entries that are read by one call
_DIRENT_HEADER = struct.Struct("=16xHB")  # struct dirent64: d_reclen and d_type, before d_name
_HANDLE_HEADER = struct.Struct("=Ii")  # struct file_handle: handle_bytes, handle_type, and then the handle
_MAX_HANDLE_BYTES = 128  # MAX_HANDLE_SZ of linux/fcntl.h
_EMPTY_HANDLE = _HANDLE_HEADER.pack(_MAX_HANDLE_BYTES, 0) + bytes(_MAX_HANDLE_BYTES)


def renameat2(directory: int, old: bytes, new: bytes, flags: int, to: int = -1) -> None:
    """Call renameat2(2): give the item ``old`` in the open ``directory`` the name ``new`` in the open directory ``to``.

    If ``to`` is -1, ``new`` is also a name in ``directory``. ``flags``: ``RENAME_NOREPLACE`` or ``RENAME_EXCHANGE``.
    """
    _call_c_function("renameat2", directory, old, directory if to < 0 else to, new, flags)


def fnmatch(pattern: bytes, name: bytes, *, ignores_case: bool) -> bool:
    """Return True if the shell ``pattern`` matches the whole ``name`` (fnmatch(3)).

    ``ignores_case``: True if upper case and lower case letters count as equal.
    """
    return not _libc().fnmatch(pattern, name, _FNM_CASEFOLD if ignores_case else 0)


def syncfs(descriptor: int) -> None:
    """Write all changes of the file system of an open file or directory to stable storage (syncfs(2))."""
    _call_c_function("syncfs", descriptor)


def fallocate(descriptor: int, start: int, length: int) -> None:
    """Allocate space for ``length`` bytes at the offset ``start`` of a file by fallocate(2); keep the size of the file.

    If the size were increased before the data are written, a power failure could leave a file with the full size but
    without its data. posix_fallocate(3) is not used, because it writes zeros if fallocate(2) is not supported.
    """
    from ctypes import c_int64

    _call_c_function("fallocate", descriptor, _KEEP_SIZE, c_int64(start), c_int64(length))


def punch_hole(descriptor: int, start: int, length: int) -> None:
    """Deallocate ``length`` bytes of a file from the offset ``start`` by fallocate(2): they read as zeros afterwards.

    The size of the file is unchanged.
    """
    from ctypes import c_int64

    _call_c_function("fallocate", descriptor, _KEEP_SIZE | _PUNCH_HOLE, c_int64(start), c_int64(length))


def sync_file_range(descriptor: int, start: int, length: int, flags: int) -> None:
    """Write the data of ``length`` bytes of a file from the offset ``start`` to its device by sync_file_range(2).

    ``flags`` say what to begin and what to wait for: the sum of some of the constants ``SYNC_RANGE_...``.
    """
    from ctypes import c_int64

    _call_c_function("sync_file_range", descriptor, c_int64(start), c_int64(length), flags)


def birth_time(directory: int, name: bytes) -> int:
    """Return the birth time of ``name`` in an open directory (statx(2)), in nanoseconds since 1970. Raise ``OSError``.

    If ``name`` is empty, return the birth time of ``directory`` itself, which may then be any open item. Return 0 if
    the file system does not store birth times.
    """
    buffer = _c_buffer(_STATX_BYTES)
    _call_c_function("statx", directory, name, _AT_SYMLINK_NOFOLLOW | _AT_EMPTY_PATH, _STATX_BTIME, buffer)
    mask, seconds, nanoseconds = _STATX_BTIME_FIELDS.unpack_from(buffer.raw)
    return seconds * 10**9 + nanoseconds if mask & _STATX_BTIME else 0


def mtime_on_server(descriptor: int) -> int:
    """Return the modification time of an open item, in nanoseconds since 1970 (statx(2)).

    A network file system asks its server for the time instead of using a cached one (AT_STATX_FORCE_SYNC).
    """
    buffer = _c_buffer(_STATX_BYTES)
    _call_c_function("statx", descriptor, b"", _AT_EMPTY_PATH | _AT_STATX_FORCE_SYNC, _STATX_MTIME, buffer)
    seconds, nanoseconds = _STATX_MTIME_FIELDS.unpack_from(buffer.raw)
    return int(seconds * 10**9 + nanoseconds)


def mount_id(descriptor: int) -> int:
    """Return the mount id of an open item (statx(2), since Linux 5.8), or -1 if the system does not return it."""
    buffer = _c_buffer(_STATX_BYTES)
    _call_c_function("statx", descriptor, b"", _AT_EMPTY_PATH, _STATX_MNT_ID, buffer)
    mask, number = _STATX_MOUNT_FIELDS.unpack_from(buffer.raw)
    return int(number) if mask & _STATX_MNT_ID else -1


def free_space_in_bytes(status: os.statvfs_result, *, reserved: bool = False) -> int:
    """Return the free bytes of a file system with this ``status``; with ``reserved`` include those that only root may
    use.

    Raise ``OSError`` if the file system reports 0 blocks in total: its size is unknown then, and it is not full.
    """
    if not status.f_blocks:
        raise OSError(errno.ENODATA, "the file system does not report its size")
    return (status.f_bfree if reserved else status.f_bavail) * status.f_frsize


def type_of_file_system(descriptor: int) -> int:
    """Return the type (f_type) of the file system of an open item (statfs(2)).

    If the file system does not implement statfs, return the type of FUSE, because only a FUSE server may lack it.
    """
    buffer = _c_buffer(_STATFS_BYTES)
    while True:
        try:
            _call_c_function("fstatfs", descriptor, buffer)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            return FUSE_TYPE
        # f_type is the first field: a long, but on s390 an unsigned int.
        width = 4 if os.uname().machine.startswith("s390") else struct.calcsize("l")
        return int.from_bytes(buffer.raw[:width], sys.byteorder)


def file_types_by_name(directory: int) -> dict[bytes, int]:
    """Return the file type of each name in an open directory (getdents64(2)).

    The type is a value such as ``stat.S_IFDIR``, or 0 if the file system does not return it. The listing begins at the
    current position of the descriptor.
    """
    import ctypes

    list_some = getattr(_libc(), "getdents64", None)
    if list_some is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    buffer, types = _c_buffer(_LISTING_BYTES), dict[bytes, int]()
    while (size := list_some(directory, buffer, _LISTING_BYTES)) > 0:
        entries, at = buffer.raw[:size], 0
        while at < size:
            length, type_ = _DIRENT_HEADER.unpack_from(entries, at)
            types[entries[at + _DIRENT_HEADER.size : at + length].partition(b"\0")[0]] = type_ << 12
            at += length
    if size < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return types


def kernel_file_handle(descriptor: int) -> bytes:
    """Return the file handle of an open item (name_to_handle_at(2)): the type in four bytes, followed by the handle's
    bytes.
    """
    if not _file_handle_function:
        _file_handle_function.append(_make_file_handle_function())
    return _file_handle_function[0](descriptor)


_file_handle_function: list[Callable[[int], bytes]] = []
"""A list that contains the function of ``_make_file_handle_function`` after the first call; before, it is empty."""


def keep_in_memory_until_exit(thing: object) -> None:
    """Keep the object ``thing`` in memory until the process ends.

    For memory to which a system call may still write although nobody waits for it any longer.
    """
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def retain_freed_memory(most: int) -> None:
    """Let glibc keep up to ``most`` bytes of freed memory in this process, to be used again (mallopt(3)).

    By default glibc returns each large block to the kernel. When such a block is allocated again, the kernel fills it
    with zeros, page by page, which takes several times as long as to copy data into it. With another C library this
    function has no effect.
    """
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, most)
        mallopt(_M_TOP_PAD, most // 4)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that has started it ends (prctl(2), PR_SET_PDEATHSIG)."""
    _call_c_function("prctl", _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


class c_signal_handler:  # noqa: N801 (used like a statement)
    """Context manager: within its block the C library calls ``handler`` when the signal ``number`` arrives.

    A signal handler of Python runs only between two steps of the interpreter. ``handler`` also runs while a C function
    is executed, even one that never returns.
    """

    def __init__(self, number: int, handler: Callable[[int], None]) -> None:
        self._number, self._handler = number, handler

    def __enter__(self) -> None:
        import ctypes

        # Keep a reference to the callback: otherwise ctypes would free it while C still has its address.
        self._called = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._handler)
        self._set_handler = ctypes.CDLL(None).signal
        self._set_handler.argtypes, self._set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        self._before = self._set_handler(self._number, ctypes.cast(self._called, ctypes.c_void_p))

    def __exit__(self, *_: object) -> None:
        self._set_handler(self._number, self._before)


def symbols_defined_in_library(library: str, names: Iterable[str]) -> set[str]:
    """Load the shared ``library``, and return those of ``names`` that it or a library linked with it defines."""
    import ctypes

    loaded = ctypes.CDLL(library)
    return {name for name in names if hasattr(loaded, name)}


def _libc() -> CDLL:
    """Return the C library of this process, loaded with ctypes at the first call."""
    if not _loaded_libc:
        import ctypes

        _loaded_libc.append(ctypes.CDLL(None, use_errno=True))
    return _loaded_libc[0]


_loaded_libc: list[CDLL] = []
"""A list that contains the C library after the first call; before, it is empty."""


def _c_buffer(size: int) -> Any:
    """Return a C buffer of ``size`` bytes, filled with zeros."""
    import ctypes

    return ctypes.create_string_buffer(size)


def _call_c_function(name: str, *arguments: Any) -> None:
    """Call the C function ``name``. Raise ``OSError`` if it does not exist or returns another value than 0."""
    import ctypes

    function: Callable[..., int] | None = getattr(_libc(), name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(*arguments):
        number = ctypes.get_errno() or errno.EIO
        raise OSError(number, os.strerror(number))


def _make_file_handle_function() -> Callable[[int], bytes]:
    """Return a function that returns the file handle of an open item, for ``kernel_file_handle``.

    It is called for each new item; so its constant parts are prepared once here.
    """
    import ctypes

    new_buffer = (ctypes.c_char * len(_EMPTY_HANDLE)).from_buffer_copy
    mount = ctypes.byref(ctypes.c_int())  # receives the mount id, which is not used: it differs from host to host

    def ask(descriptor: int) -> bytes:
        buffer = new_buffer(_EMPTY_HANDLE)
        _call_c_function("name_to_handle_at", descriptor, b"", buffer, mount, _AT_EMPTY_PATH)
        raw: bytes = buffer.raw
        return raw[4 : _HANDLE_HEADER.size + _HANDLE_HEADER.unpack_from(raw)[0]]

    return ask
