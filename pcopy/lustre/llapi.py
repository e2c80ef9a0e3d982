"""Access to liblustreapi and to ioctl requests of Lustre, for facts that no ordinary system call returns.

The library is loaded when it is first needed. The functions that are used here are the same since Lustre 2.12. If the
library or a function is missing, the result is ``None`` (unknown), never a guess.
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
from pcopy.fsio.problem import Problem, as_problem

LIBRARY = "liblustreapi.so.1"
"""File name of the library."""
LIBRARY_VARIABLE = "PCOPY_LIBLUSTREAPI"
"""Environment variable that names another library."""

GROUP_LOCK_REQUEST, GROUP_UNLOCK_REQUEST = 0x4008669E, 0x4008669F
"""Requests of ioctl(2), from lustre_user.h.

They are LL_IOC_GROUP_LOCK and _UNLOCK, LL_IOC_GETOBDCOUNT, LL_IOC_GET_MDTIDX and LL_IOC_LMV_GETSTRIPE.
"""
OST_COUNT_REQUEST = 0x800866A8
MDT_INDEX_REQUEST = 0x800466AF
DIRECTORY_STRIPES_REQUEST = 0xC03066F1
"""Requests of ioctl(2), from lustre_user.h: LL_IOC_GROUP_LOCK and _UNLOCK, LL_IOC_GETOBDCOUNT, LL_IOC_GET_MDTIDX,
LL_IOC_LMV_GETSTRIPE."""

STRIPED_DIRECTORY_MAGIC = 0x0CD20CD0
"""Magic number of the result of LL_IOC_LMV_GETSTRIPE: LMV_MAGIC_V1."""
MAX_DIRECTORY_STRIPES = 2000
"""Maximum number of stripes of a directory."""

LOCK_TIMEOUT = 60.0
"""Maximum seconds to wait for the group lock of a file, until other clients have given back their locks."""
SHORT_LOCK_TIMEOUT = 1.0
"""The same for a file that is written without the group lock if that cannot be acquired."""
MAX_LOCK_PAUSE = 0.005
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
"""Errors of creating a file in a pool that say nothing about the pool.

A pool that does not exist leaves errno unchanged.
"""

_INT = struct.Struct("=i")
_LONG = struct.Struct("=q")
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
"""Declarations of the functions of the library that are used."""


@cache
def _ffi() -> Any:
    """Return the cffi object with the declarations."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(_C_DECLARATIONS)
    return ffi


@cache
def _library() -> Any:
    """Return the library, with its output to standard error switched off; None if it cannot be loaded."""
    ffi = _ffi()
    try:
        library: Any = ffi.dlopen(os.environ.get(LIBRARY_VARIABLE) or LIBRARY)
        library.llapi_msg_set_level(0)
    except (OSError, AttributeError):
        return None
    return library


def has_pool(directory: int, name: bytes, pool: bytes) -> bool | None:
    """Return True if files of an open directory can be created in ``pool``; None if that cannot be determined.

    setxattr(2) accepts a layout with a pool that does not exist, without an error. So the Lustre library is asked to
    create a file: it checks the pool first. The file is called ``name``, which must be free, and is removed again.
    """
    library = _library()
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
        return int(_LONG.unpack(fcntl.ioctl(descriptor, OST_COUNT_REQUEST, _LONG.pack(0)))[0]) & 0xFFFFFFFF
    except OSError:
        return 0


def mdts_of(descriptor: int) -> tuple[int, ...]:
    """Return the indices of the MDTs that store the entries of an open directory, several if it is striped; -1 if
    unknown.
    """
    buffer = bytearray(_DIRECTORY_FORMAT.size + MAX_DIRECTORY_STRIPES * _DIRECTORY_STRIPE_FORMAT.size)
    _DIRECTORY_FORMAT.pack_into(buffer, 0, STRIPED_DIRECTORY_MAGIC, MAX_DIRECTORY_STRIPES)
    try:
        fcntl.ioctl(descriptor, DIRECTORY_STRIPES_REQUEST, buffer)
    except OSError:  # most directories are not striped, and then the request fails
        return (mdt_of(descriptor),)
    magic, stripes = _DIRECTORY_FORMAT.unpack_from(buffer)
    offsets = [
        _DIRECTORY_FORMAT.size + number * _DIRECTORY_STRIPE_FORMAT.size
        for number in range(min(stripes, MAX_DIRECTORY_STRIPES))
    ]
    if magic != STRIPED_DIRECTORY_MAGIC or not offsets:
        return (mdt_of(descriptor),)
    return tuple(sorted({_DIRECTORY_STRIPE_FORMAT.unpack_from(buffer, offset)[0] for offset in offsets}))


def mdt_of(descriptor: int) -> int:
    """Return the index of the MDT that stores an open item; -1 if it is unknown."""
    try:
        return int(_INT.unpack(fcntl.ioctl(descriptor, MDT_INDEX_REQUEST, _INT.pack(0)))[0])
    except OSError:
        return -1


def group_lock(
    descriptor: int, group: int, *, is_required: bool
) -> Generator[None, None, AbstractContextManager[None]]:
    """Acquire the group lock of a file that is open for writing, and return a context manager that releases it.

    All writers that name the same ``group`` (not 0) share the lock. The generator yields after each attempt and sleeps
    briefly. Raise ``Problem``.

    Unless ``is_required`` is True, the file remains unlocked if the file system has no group locks, or if other clients
    do not give back their locks in ``SHORT_LOCK_TIMEOUT`` seconds.
    """
    try:
        yield from _acquire_lock(descriptor, group, LOCK_TIMEOUT if is_required else SHORT_LOCK_TIMEOUT)
    except OSError as error:
        if is_required or error.errno not in (*_LOCKS_UNSUPPORTED_ERRNOS, errno.EAGAIN):
            raise Problem.from_error("group lock", error) from error
        return nullcontext()
    return _releasing_lock(descriptor, group)


@contextmanager
def _releasing_lock(descriptor: int, group: int) -> Iterator[None]:
    """Release the group lock at the end of the block, whether it raises or not. Raise ``Problem``."""
    try:
        yield
    except BaseException:
        with suppress(OSError):  # closing the file releases the lock, too
            _request_lock(GROUP_UNLOCK_REQUEST, descriptor, group)
        raise
    with as_problem("group unlock"):
        _request_lock(GROUP_UNLOCK_REQUEST, descriptor, group)


def _acquire_lock(descriptor: int, group: int, patience: float) -> Generator[None, None, None]:
    """Try to acquire the lock for ``patience`` seconds, while other clients give back theirs. Raise ``OSError``.

    The system call does not wait, because all descriptors here were opened with O_NONBLOCK.
    """
    until, pause = time.monotonic() + patience, 0.001
    while True:
        try:
            _request_lock(GROUP_LOCK_REQUEST, descriptor, group)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        yield
        time.sleep(pause)
        pause = min(2 * pause, MAX_LOCK_PAUSE)


def _request_lock(request: int, descriptor: int, group: int) -> None:
    """Send a request of ioctl(2) for the group lock. Raise ``OSError``."""
    fcntl.ioctl(descriptor, request, group)
