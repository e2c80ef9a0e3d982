"""In which system call a thread of this process is, as the kernel sees it (Linux, proc(5): /proc/PID/task/TID/syscall).

Rule: looking never waits. Descriptors are named by their links in /proc/self/fd, and names are read from this process's
own memory through /proc/self/mem, which fails where a pointer would crash; no file system is asked anything.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class _Call(NamedTuple):
    """A call's name, its numbers on x86-64 and on aarch64 (-1: none), and which arguments say what it concerns.

    ``f``: a descriptor, ``n``: a name relative to the descriptor before it, ``p``: a path, ``.``: something else.
    """

    name: str
    x86: int
    arm: int
    arguments: str


_CALLS = (
    _Call("read", 0, 63, "f"),
    _Call("write", 1, 64, "f"),
    _Call("open", 2, -1, "p"),
    _Call("close", 3, 57, "f"),
    _Call("stat", 4, -1, "p"),
    _Call("fstat", 5, 80, "f"),
    _Call("lstat", 6, -1, "p"),
    _Call("lseek", 8, 62, "f"),
    _Call("ioctl", 16, 29, "f"),
    _Call("pread", 17, 67, "f"),
    _Call("pwrite", 18, 68, "f"),
    _Call("readv", 19, 65, "f"),
    _Call("writev", 20, 66, "f"),
    _Call("sendmsg", 46, 211, "f"),
    _Call("recvfrom", 45, 207, "f"),
    _Call("flock", 73, 32, "f"),
    _Call("fsync", 74, 82, "f"),
    _Call("fdatasync", 75, 83, "f"),
    _Call("ftruncate", 77, 46, "f"),
    _Call("getdents", 217, 61, "f"),
    _Call("rename", 82, -1, "pp"),
    _Call("mkdir", 83, -1, "p"),
    _Call("unlink", 87, -1, "p"),
    _Call("readlink", 89, -1, "p"),
    _Call("chmod", 90, -1, "p"),
    _Call("fchmod", 91, 52, "f"),
    _Call("fchown", 93, 55, "f"),
    _Call("statfs", 137, 43, "p"),
    _Call("fstatfs", 138, 44, "f"),
    _Call("setxattr", 188, 5, "p"),
    _Call("lsetxattr", 189, 6, "p"),
    _Call("fsetxattr", 190, 7, "f"),
    _Call("getxattr", 191, 8, "p"),
    _Call("lgetxattr", 192, 9, "p"),
    _Call("fgetxattr", 193, 10, "f"),
    _Call("listxattr", 194, 11, "p"),
    _Call("llistxattr", 195, 12, "p"),
    _Call("flistxattr", 196, 13, "f"),
    _Call("futex", 202, 98, ""),
    _Call("fadvise64", 221, 223, "f"),
    _Call("epoll_wait", 232, -1, ""),
    _Call("openat", 257, 56, "fn"),
    _Call("mkdirat", 258, 34, "fn"),
    _Call("mknodat", 259, 33, "fn"),
    _Call("fchownat", 260, 54, "fn"),
    _Call("newfstatat", 262, 79, "fn"),
    _Call("unlinkat", 263, 35, "fn"),
    _Call("renameat", 264, 38, "fnfn"),
    _Call("linkat", 265, 37, "fnfn"),
    _Call("symlinkat", 266, 36, ".fn"),
    _Call("readlinkat", 267, 78, "fn"),
    _Call("fchmodat", 268, 53, "fn"),
    _Call("utimensat", 280, 88, "fn"),
    _Call("epoll_pwait", 281, 22, ""),
    _Call("fallocate", 285, 47, "f"),
    _Call("preadv", 295, 69, "f"),
    _Call("pwritev", 296, 70, "f"),
    _Call("syncfs", 306, 267, "f"),
    _Call("renameat2", 316, 276, "fnfn"),
    _Call("copy_file_range", 326, 285, "f.f"),
    _Call("preadv2", 327, 286, "f"),
    _Call("pwritev2", 328, 287, "f"),
    _Call("statx", 332, 291, "fn"),
    _Call("openat2", 437, 437, "fn"),
)
_NUMBERED = {"x86_64": {call.x86: call for call in _CALLS}, "aarch64": {call.arm: call for call in _CALLS}}
_LONGEST_NAME = 256
_CALL_ARGUMENTS = 6


def current_call(thread: int) -> tuple[str, tuple[bytes, ...]] | None:
    """The name of the system call that ``thread`` (its native id) is in, and the paths that it concerns.

    ``("", ())`` if it is in none; None where the kernel does not tell.
    """
    try:
        with open(f"/proc/self/task/{thread}/syscall") as file:
            words = file.read().split()
    except OSError:
        return None
    if not words or words[0] == "running" or words[0] == "-1":
        return "", ()
    number = int(words[0])
    call = _NUMBERED.get(os.uname().machine, {}).get(number)
    if call is None:
        return f"system call {number}", ()
    return call.name, _paths(call, [int(word, 16) for word in words[1 : 1 + _CALL_ARGUMENTS]])


def _paths(call: _Call, arguments: list[int]) -> tuple[bytes, ...]:
    """What the arguments name; what cannot be read is left out."""
    paths: list[bytes] = []
    for kind, argument in zip(call.arguments, arguments, strict=False):
        if kind == "f" and (path := _descriptor(argument)):
            paths.append(path)
        elif kind == "p":
            paths.append(_string(argument))
        elif kind == "n" and (name := _string(argument)):
            above = paths.pop() if paths else b""
            paths.append(name if name.startswith(b"/") or not above else above + b"/" + name)
    return tuple(filter(None, paths))


def _descriptor(argument: int) -> bytes:
    """What a descriptor leads to; empty for AT_FDCWD."""
    try:
        return os.readlink(b"/proc/self/fd/%d" % (argument & 0xFFFFFFFF))
    except OSError:
        return b""


def _string(address: int) -> bytes:
    """The name at ``address`` of our own memory."""
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(memory, _LONGEST_NAME, address).partition(b"\0")[0]
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(memory)
