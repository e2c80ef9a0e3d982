"""Which item is it? An inode's number alone doesn't tell: ext4 gives a freed one out again at once.

An item is known by its *identity*: the mount code of its file system (``pcopy.fsio.mounts``), the inode's number, and a
*mark*, which sets the item apart from a later one with the same number. The mark is made from the file handle
(name_to_handle_at(2)), which carries the inode's generation, or Lustre's FID: nobody can choose it, any user may ask
for it, and all hosts are told the same. Where there are no handles it is made from the time of birth, which comes from
a coarse clock. Where neither can be had the mark is empty: that *can't be told*.

``identity_of`` and ``mark_of`` ask an open descriptor, O_PATH or not (some 3 us). A descriptor that is held keeps its
inode's number from being given out again, so a name with the same st_dev and st_ino is that very item then; an identity
is for what is opened again later, by another rank, or in another run. ``compare`` knows what can't be told. ``==``
doesn't, and is for two identities only that were the same value once.

Rules:
- FUSE numbers its items anew whenever the kernel has forgotten them, and its handles carry that number: none is asked
  for there.
- On an overlay both the handle and the time of birth change with the first write into what lies in a lower layer. So
  they are the mark only of what this job has made itself (``made``), which never lay there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import NamedTuple

from pcopy.fsio.birth import birth_of
from pcopy.fsio.file_system import FUSE, OVERLAY, type_of_file_system

_HANDLE = struct.Struct("=Ii")  # struct file_handle: handle_bytes, handle_type, and then the handle
_MOST_BYTES = 128  # MAX_HANDLE_SZ
_AT_EMPTY_PATH = 0x1000
_TYPE = struct.Struct("=i")
_MAYBE_FUSE = _TYPE.pack(0x81)  # FILEID_INO64_GEN; XFS has it, too
_OF_OVERLAYS = (_TYPE.pack(0xF8), _TYPE.pack(0xFB))  # OVL_FILEID_V1 and V0


class Likeness(Enum):
    """What two identities tell of their items; ``UNTOLD``: the same number, and one side at least can't tell more."""

    SAME = "same"
    OTHER = "other"
    UNTOLD = "untold"


class Identity(NamedTuple):
    """Made of primitives: it travels in tasks and means the same on all hosts. ``mark``: see above."""

    mount: int
    inode: int
    mark: bytes = b""

    def compare(self, other: Identity) -> Likeness:
        """Is it the same item as ``other``, which has been identified at another time, or by another host?"""
        if self[:2] != other[:2]:
            return Likeness.OTHER
        if not self.mark or _kind(self.mark) != _kind(other.mark):
            return Likeness.UNTOLD
        return Likeness.SAME if self.mark == other.mark else Likeness.OTHER


def identity_of(descriptor: int, status: os.stat_result, mount: int, *, made: bool) -> Identity:
    """What is open, and has that ``status``. ``mount`` is the code of the directory that it lies in, or its own.

    ``made``: this job has made the item; what was there before the job isn't marked on an overlay.
    """
    return Identity(mount, status.st_ino, mark_of(descriptor, made=made))


def mark_of(descriptor: int, *, made: bool) -> bytes:
    """The mark of what is open; empty if that can't be told. Raises nothing."""
    handle = _handle(descriptor)
    kind = handle[:4]
    if handle and not (kind == _MAYBE_FUSE and lies_on(FUSE, descriptor)):
        return b"" if kind in _OF_OVERLAYS and not made else b"H" + handle
    if not made and lies_on(OVERLAY, descriptor):
        return b""
    born = birth_of(descriptor)
    return b"B%d" % born if born else b""


def _kind(mark: bytes) -> bytes:
    """Marks of other kinds can't be compared: one host was told of handles, or mounts in another way."""
    return b"%b%d" % (mark[:5], len(mark)) if mark[:1] == b"H" else mark[:1]


def _handle(descriptor: int) -> bytes:
    """The type of its file handle, in four bytes, and the handle; empty where there is none."""
    name_to_handle_at = _name_to_handle_at()
    return name_to_handle_at(descriptor) if name_to_handle_at is not None else b""


@cache
def _name_to_handle_at() -> Callable[[int], bytes] | None:
    """name_to_handle_at(2), which gives what ``_handle`` does; None with a C library that doesn't have it."""
    import ctypes

    call = getattr(ctypes.CDLL(None), "name_to_handle_at", None)
    if call is None:
        return None
    template = _HANDLE.pack(_MOST_BYTES, 0) + bytes(_MOST_BYTES)
    new_buffer = (ctypes.c_char * len(template)).from_buffer_copy
    mount = ctypes.byref(ctypes.c_int())  # its number is a host's own, and nobody looks at it

    def ask(descriptor: int) -> bytes:
        buffer = new_buffer(template)
        if call(descriptor, b"", buffer, mount, _AT_EMPTY_PATH):
            return b""
        raw: bytes = buffer.raw
        return raw[4 : _HANDLE.size + _HANDLE.unpack_from(raw)[0]]

    return ask


def lies_on(kind: int, descriptor: int) -> bool:
    """On a file system with that f_type, as far as that can't be excluded?"""
    try:
        return type_of_file_system(descriptor) == kind
    except OSError:
        return True
