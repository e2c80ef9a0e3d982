"""Child processes without a system call or without /proc, as in some containers."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

FCHMODAT2 = 452

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38
_NEW_MOUNTS, _PRIVATE = 0x00020000, 1 << 18 | 1 << 14


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def refuse_call(call: int, number: int) -> None:
    """Let this system call fail with an errno, in this process and its children, for good (seccomp)."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps = ((_LOAD, 0, 0, 0), (_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ERRNO | number), (_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    _check(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _check(libc.prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(program), 0, 0))
    if libc.syscall(call, -1, b"", 0, 0x1000) != -1 or ctypes.get_errno() != number:
        raise AssertionError("the filter does not work")


def hide_proc() -> None:
    """Mount an empty file system over /proc, in a mount namespace of this process and its children; needs root."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_NEW_MOUNTS))
    _check(libc.mount(None, b"/", None, _PRIVATE, None))
    _check(libc.mount(b"none", b"/proc", b"tmpfs", 0, None))


def _confine(fchmodat2: int, proc: bool) -> None:
    if not proc:
        hide_proc()
    if fchmodat2:
        refuse_call(FCHMODAT2, fchmodat2)


def wrapped(fchmodat2: int = 0, *, proc: bool = True) -> list[str]:
    """Return the command prefix that runs a command as ``confined`` does."""
    return [sys.executable, str(Path(__file__)), str(fchmodat2), str(int(proc))]


def confined(action: Callable[[], object], *, fchmodat2: int = 0, proc: bool = True) -> object:
    """Run ``action`` in a child, and return what it returns, by way of JSON.

    Args:
        fchmodat2: the errno with which this system call fails; 0: it works as the kernel has it.
        proc: whether the child has /proc.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _confine(fchmodat2, proc)
            os.write(writing, json.dumps(action()).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    assert text, "the child failed: its standard error has why"
    return json.loads(text)


WAYS = {
    "by the call": (0, True),
    "without the call": (errno.ENOSYS, True),
    "with the call filtered": (errno.EPERM, True),
    "without /proc": (0, False),
    "without the call and /proc": (errno.ENOSYS, False),
    "with the call filtered, without /proc": (errno.EPERM, False),
}
"""The errno of fchmodat2, and whether there is /proc."""


if __name__ == "__main__":
    _confine(int(sys.argv[1]), sys.argv[2] == "1")
    os.execv(sys.argv[3], sys.argv[3:])
