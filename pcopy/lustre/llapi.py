"""Access to liblustreapi and to ioctl(2) requests of Lustre, for what no ordinary system call returns: pools, number of
OSTs, MDT of an item, group locks.

The library is loaded when it is first needed. The functions that are used here are the same since Lustre 2.12. If the
library or a function is missing, ``has_ost_pool`` returns None (unknown), never a guess.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.problem import Problem, errors_as_problem

LIBRARY_FILE_NAME = "liblustreapi.so.1"
"""File name of the Lustre library (liblustreapi), for dlopen(3)."""
LIBRARY_VARIABLE = "PCOPY_LIBLUSTREAPI"
"""Environment variable with the path of a library to load instead of ``LIBRARY_FILE_NAME``."""

GROUP_LOCK_REQUEST, GROUP_UNLOCK_REQUEST = 0x4008669E, 0x4008669F
"""Requests LL_IOC_GROUP_LOCK and LL_IOC_GROUP_UNLOCK of ioctl(2), from lustre_user.h: acquire and release a group
lock.
"""
OST_COUNT_REQUEST = 0x800866A8
"""Request LL_IOC_GETOBDCOUNT: returns the number of OSTs of the file system."""
MDT_INDEX_REQUEST = 0x800466AF
"""Request LL_IOC_GET_MDTIDX: returns the index of the MDT that stores an item."""
DIRECTORY_STRIPES_REQUEST = 0xC03066F1
"""Request LL_IOC_LMV_GETSTRIPE: returns the stripes of a directory, each on one MDT."""

STRIPED_DIRECTORY_MAGIC = 0x0CD20CD0
"""Magic number LMV_MAGIC_V1, with which the result of the request LL_IOC_LMV_GETSTRIPE begins."""
MAX_DIRECTORY_STRIPES = 2000
"""Maximum number of stripes of a directory for which the buffer for the result of ``DIRECTORY_STRIPES_REQUEST`` has
room.
"""

GROUP_LOCK_TIMEOUT = 60.0
"""Maximum seconds to wait for a required group lock of a file, until other clients have released their locks."""
OPTIONAL_GROUP_LOCK_TIMEOUT = 1.0
"""Maximum seconds to wait for a group lock that is not required: the file is written without it afterwards."""
MAX_GROUP_LOCK_PAUSE = 0.005
"""Maximum seconds that a rank sleeps between two attempts to acquire a group lock."""

_LOCKS_UNSUPPORTED_ERRNOS = (errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors that mean that the file system has no group locks."""

_INCONCLUSIVE_ERRNOS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EDQUOT,
    errno.ENOSPC,
    errno.EIO,
    errno.EINTR,
    errno.ENOMEM,
)
"""Errors of creating a file in a pool after which it is still unknown whether the pool exists.

If the pool does not exist, the library leaves errno unchanged.
"""

_INT_FORMAT = struct.Struct("=i")
_LONG_FORMAT = struct.Struct("=q")
_DIRECTORY_FORMAT = struct.Struct("=II40x")
_DIRECTORY_STRIPE_FORMAT = struct.Struct("=16xI4x")
"""Formats of lmv_user_md_v1 (magic number, number of stripes) and of lmv_user_mds_data (MDT)."""

_C_DECLARATIONS = """
    void llapi_msg_set_level(int level);
    struct llapi_layout *llapi_layout_alloc(void);
    void llapi_layout_free(struct llapi_layout *layout);
    int llapi_layout_pool_name_set(struct llapi_layout *layout, const char *pool);
    int llapi_layout_file_create(const char *path, int flags, int mode, const struct llapi_layout *layout);
"""
"""C declarations of those functions of the Lustre library that are used."""


@cache
def _ffi() -> Any:
    """Return the cffi object with the declarations ``_C_DECLARATIONS``."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(_C_DECLARATIONS)
    return ffi


@cache
def _lustre_library() -> Any:
    """Return the Lustre library, with its output to standard error switched off; None if it cannot be loaded."""
    ffi = _ffi()
    try:
        library: Any = ffi.dlopen(os.environ.get(LIBRARY_VARIABLE) or LIBRARY_FILE_NAME)
        library.llapi_msg_set_level(0)
    except (OSError, AttributeError):
        return None
    return library


def has_ost_pool(directory: int, name: bytes, pool: bytes) -> bool | None:
    """Return True if the file system of an open directory has the OST pool ``pool``, False if not, and None if that
    cannot be determined.

    setxattr(2) does not show that: it accepts a layout with a pool that does not exist, without an error. So the Lustre
    library, which checks the pool first, creates a file in the directory. The file is called ``name``, which must not
    exist, and is removed again.
    """
    library = _lustre_library()
    if library is None:
        return None
    try:
        layout = library.llapi_layout_alloc()
        if not layout:
            return None
        try:
            if library.llapi_layout_pool_name_set(layout, pool):
                return False
            path = b"/proc/self/fd/%d/%s" % (directory, name)
            _ffi().errno = 0
            made = library.llapi_layout_file_create(path, os.O_WRONLY | os.O_CLOEXEC, 0o600, layout)
            error = _ffi().errno
        finally:
            library.llapi_layout_free(layout)
    except AttributeError:  # a library without these functions
        return None
    if made >= 0:
        close_ignoring_errors(made)
    with suppress(OSError):
        os.unlink(name, dir_fd=directory)
    if made < 0 and error in _INCONCLUSIVE_ERRNOS:
        return None
    return bool(made >= 0)


def count_osts(descriptor: int) -> int:
    """Return the number of OSTs of the file system of an open directory; 0 if it is unknown."""
    try:
        return (
            int(_LONG_FORMAT.unpack(fcntl.ioctl(descriptor, OST_COUNT_REQUEST, _LONG_FORMAT.pack(0)))[0]) & 0xFFFFFFFF
        )
    except OSError:
        return 0


def mdts_of_directory(descriptor: int) -> tuple[int, ...]:
    """Return the indices of the MDTs that store the entries of an open directory: several if it is striped, (-1,) if
    they are unknown.
    """
    buffer = bytearray(_DIRECTORY_FORMAT.size + MAX_DIRECTORY_STRIPES * _DIRECTORY_STRIPE_FORMAT.size)
    _DIRECTORY_FORMAT.pack_into(buffer, 0, STRIPED_DIRECTORY_MAGIC, MAX_DIRECTORY_STRIPES)
    try:
        fcntl.ioctl(descriptor, DIRECTORY_STRIPES_REQUEST, buffer)
    except OSError:  # most directories are not striped, and then the request fails
        return (mdt_of_item(descriptor),)
    magic, stripes = _DIRECTORY_FORMAT.unpack_from(buffer)
    offsets = [
        _DIRECTORY_FORMAT.size + number * _DIRECTORY_STRIPE_FORMAT.size
        for number in range(min(stripes, MAX_DIRECTORY_STRIPES))
    ]
    if magic != STRIPED_DIRECTORY_MAGIC or not offsets:
        return (mdt_of_item(descriptor),)
    return tuple(sorted({_DIRECTORY_STRIPE_FORMAT.unpack_from(buffer, offset)[0] for offset in offsets}))


def mdt_of_item(descriptor: int) -> int:
    """Return the index of the MDT that stores an open item; -1 if it is unknown."""
    try:
        return int(_INT_FORMAT.unpack(fcntl.ioctl(descriptor, MDT_INDEX_REQUEST, _INT_FORMAT.pack(0)))[0])
    except OSError:
        return -1


def acquire_group_lock(
    descriptor: int, group: int, *, is_required: bool
) -> Generator[None, None, AbstractContextManager[None]]:
    """Generator: acquire the group lock of a file that is open for writing, and return a context manager that releases
    the lock at the end of its block.

    All writers that use the same number ``group`` (not 0) share the lock; other clients wait. After each attempt that
    fails, the generator yields, and then sleeps briefly. Raise ``Problem`` if the lock cannot be acquired.

    If ``is_required`` is False, the file remains unlocked, without an error, if the file system has no group locks, or
    if other clients do not release their locks within ``OPTIONAL_GROUP_LOCK_TIMEOUT`` seconds.
    """
    try:
        yield from _try_to_acquire_group_lock(
            descriptor, group, GROUP_LOCK_TIMEOUT if is_required else OPTIONAL_GROUP_LOCK_TIMEOUT
        )
    except OSError as error:
        if is_required or error.errno not in (*_LOCKS_UNSUPPORTED_ERRNOS, errno.EAGAIN):
            raise Problem.from_error("group lock", error) from error
        return nullcontext()
    return _releasing_group_lock(descriptor, group)


@contextmanager
def _releasing_group_lock(descriptor: int, group: int) -> Iterator[None]:
    """Context manager: release the group lock with the number ``group`` of the open file ``descriptor`` at the end of
    its block, even if the block raises an exception. Raise ``Problem`` if the lock cannot be released.
    """
    try:
        yield
    except BaseException:
        with suppress(OSError):  # closing the file releases the lock, too
            _send_group_lock_request(GROUP_UNLOCK_REQUEST, descriptor, group)
        raise
    with errors_as_problem("group unlock"):
        _send_group_lock_request(GROUP_UNLOCK_REQUEST, descriptor, group)


def _try_to_acquire_group_lock(descriptor: int, group: int, patience: float) -> Generator[None, None, None]:
    """Generator: try for ``patience`` seconds to acquire the group lock with the number ``group`` of the open file
    ``descriptor``, while other clients have locks; yield after each attempt that fails. Raise ``OSError``.

    The system call itself does not wait, because all descriptors here were opened with O_NONBLOCK.
    """
    until, pause = time.monotonic() + patience, 0.001
    while True:
        try:
            _send_group_lock_request(GROUP_LOCK_REQUEST, descriptor, group)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        yield
        time.sleep(pause)
        pause = min(2 * pause, MAX_GROUP_LOCK_PAUSE)


def _send_group_lock_request(request: int, descriptor: int, group: int) -> None:
    """Send ``request`` by ioctl(2), which acquires or releases the group lock with the number ``group`` of the open
    file ``descriptor``. Raise ``OSError``.
    """
    fcntl.ioctl(descriptor, request, group)
