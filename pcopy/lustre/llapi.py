"""liblustreapi, loaded when it is first needed: what no system call tells. Without the library there is no answer.

The functions that are used here are the same since Lustre 2.12. Of what a library lacks, nobody is told a lie: ``None``
is no answer.
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

from pcopy.fsio.close import let_go
from pcopy.fsio.problem import Problem, failing

LIBRARY = "liblustreapi.so.1"
NAMED_BY = "PCOPY_LIBLUSTREAPI"
"""The environment variable that names another library."""

GROUP_LOCK, GROUP_UNLOCK = 0x4008669E, 0x4008669F
COUNT_TARGETS = 0x800866A8
SERVER_OF = 0x800466AF
DIRECTORY_STRIPES = 0xC03066F1
"""Requests of ioctl(2), from lustre_user.h: LL_IOC_GROUP_LOCK and _UNLOCK, LL_IOC_GETOBDCOUNT, LL_IOC_GET_MDTIDX,
LL_IOC_LMV_GETSTRIPE."""

STRIPED_DIRECTORY = 0x0CD20CD0
"""The magic number of what LL_IOC_LMV_GETSTRIPE tells: LMV_MAGIC_V1."""
MOST_OF_A_DIRECTORY = 2000
"""Stripes that a directory may have."""

PATIENCE = 60.0
"""Seconds in which others must give back their locks on a file, so that it gets its group lock; else it fails."""
BRIEF_PATIENCE = 1.0
"""The same for a file that is written without the group lock if it can't get that."""
LONGEST_PAUSE = 0.005
"""Seconds that a rank sleeps before it asks for a group lock again."""

_NO_LOCKS = (errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS)

_TROUBLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EDQUOT, errno.ENOSPC, errno.EIO, errno.EINTR, errno.ENOMEM)
"""Errors that say nothing of a pool: one that does not exist leaves errno alone."""

_INT = struct.Struct("=i")
_LONG = struct.Struct("=q")
_DIRECTORY = struct.Struct("=II40x")
_DIRECTORY_STRIPE = struct.Struct("=16xI4x")
"""lmv_user_md_v1 (magic number, number of stripes) and lmv_user_mds_data (MDT)."""

_DECLARED = """
    void llapi_msg_set_level(int level);
    struct llapi_layout *llapi_layout_alloc(void);
    void llapi_layout_free(struct llapi_layout *layout);
    int llapi_layout_pool_name_set(struct llapi_layout *layout, const char *pool);
    int llapi_layout_file_create(const char *path, int flags, int mode, const struct llapi_layout *layout);
"""


@cache
def _ffi() -> Any:
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(_DECLARED)
    return ffi


@cache
def _library() -> Any:
    """The library, silent on standard error; None where there is none."""
    ffi = _ffi()
    try:
        library: Any = ffi.dlopen(os.environ.get(NAMED_BY) or LIBRARY)
        library.llapi_msg_set_level(0)
    except (OSError, AttributeError):
        return None
    return library


def has_pool(directory: int, name: bytes, pool: bytes) -> bool | None:
    """Can files of an open directory lie in ``pool``? None if nobody can tell. ``name`` must be free, and is so again.

    A file with the attribute of a pool that does not exist is made without a word. So Lustre's library is asked to make
    one: it looks first.
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
        let_go(made)
    with suppress(OSError):
        os.unlink(name, dir_fd=directory)
    if made < 0 and error in _TROUBLE:
        return None
    return bool(made >= 0)


def count_osts(descriptor: int) -> int:
    """How many OSTs the file system of an open directory has; 0 if that is not told."""
    try:
        return int(_LONG.unpack(fcntl.ioctl(descriptor, COUNT_TARGETS, _LONG.pack(0)))[0]) & 0xFFFFFFFF
    except OSError:
        return 0


def servers_of(descriptor: int) -> tuple[int, ...]:
    """The indices of the MDTs that keep the names in an open directory, several if it is striped; -1 if that is not
    told."""
    told = bytearray(_DIRECTORY.size + MOST_OF_A_DIRECTORY * _DIRECTORY_STRIPE.size)
    _DIRECTORY.pack_into(told, 0, STRIPED_DIRECTORY, MOST_OF_A_DIRECTORY)
    try:
        fcntl.ioctl(descriptor, DIRECTORY_STRIPES, told)
    except OSError:  # as a rule it is not striped
        return (server_of(descriptor),)
    magic, stripes = _DIRECTORY.unpack_from(told)
    at = [_DIRECTORY.size + number * _DIRECTORY_STRIPE.size for number in range(min(stripes, MOST_OF_A_DIRECTORY))]
    if magic != STRIPED_DIRECTORY or not at:
        return (server_of(descriptor),)
    return tuple(sorted({_DIRECTORY_STRIPE.unpack_from(told, place)[0] for place in at}))


def server_of(descriptor: int) -> int:
    """The index of the MDT that keeps something open; -1 if that is not told."""
    try:
        return int(_INT.unpack(fcntl.ioctl(descriptor, SERVER_OF, _INT.pack(0)))[0])
    except OSError:
        return -1


def group_lock(descriptor: int, group: int, *, insists: bool) -> Generator[None, None, AbstractContextManager[None]]:
    """Takes the group lock of a file that is open for writing, as all do that write to it and name the same ``group``
    (not 0). Each step waits for a moment; what is returned has the lock, and gives it back on each way out of its body.

    Unless who asks ``insists``, it has none where there are no such locks, or others hold on to theirs. Raises
    ``Problem``.
    """
    try:
        yield from _take(descriptor, group, PATIENCE if insists else BRIEF_PATIENCE)
    except OSError as error:
        if insists or error.errno not in (*_NO_LOCKS, errno.EAGAIN):
            raise Problem.of("group lock", error) from error
        return nullcontext()
    return _held(descriptor, group)


@contextmanager
def _held(descriptor: int, group: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):  # closing the file gives it back, too
            _lock(GROUP_UNLOCK, descriptor, group)
        raise
    with failing("group unlock"):
        _lock(GROUP_UNLOCK, descriptor, group)


def _take(descriptor: int, group: int, patience: float) -> Generator[None, None, None]:
    """Asks again as long as others give back the locks that they have; raises ``OSError``.

    A descriptor that was opened with O_NONBLOCK, as all are here, does not wait for that in the system.
    """
    until, pause = time.monotonic() + patience, 0.001
    while True:
        try:
            _lock(GROUP_LOCK, descriptor, group)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        yield
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _lock(request: int, descriptor: int, group: int) -> None:
    fcntl.ioctl(descriptor, request, group)
