"""The mark of a file that ``--inplace`` writes over: the file has neither its old contents nor all of the new ones.

A file gets its mark before it is emptied, and loses it only when the new contents are on stable storage. So a resumed
job, or a copy that reads the file as its source, knows by the mark that the file is incomplete; no clock could tell
that. The mark also holds the mode and the owner that the file had. Rules:

- The mark is an extended attribute. Root's is ``trusted.*``: an owner could give his file a ``user.*`` attribute
  himself, and say in it that the file had been a set-uid program of root's. So the mark of an ordinary user only says
  that the file is incomplete. Mode and owner in it are believed in his own job, if the file is still as that job has
  left it: his, with mode 0600.
- Where a file system takes no such attribute, the mark is a small synced file beside the marked one. Its name comes
  from the name of the marked file, and it tells the identity of that. If only the inode's number can be compared, the
  mark is not ``sure``: the number may be another file's by now, and FUSE gives new numbers with each mount.
- The mark is no part of an item: it is never copied, and only ``clear`` removes it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import cache

from pcopy.fsio.close import held_open, names_in
from pcopy.fsio.durable import replacing
from pcopy.fsio.identity import FUSE, Identity, Likeness, identity_of, lies_on
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.preserve import CAP_SYS_ADMIN, capable, maps_all_ids
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import FLAGS, status_of
from pcopy.fsio.temporary import PREFIX, is_undressed, remove
from pcopy.named import NamedTuple

NAMES = ("trusted.pcopy.incomplete", "user.pcopy.incomplete")
SIDECAR = PREFIX + b"incomplete-"
"""What the name of a file beside it begins with; a digest of its name follows."""

_NO_ATTRIBUTES = (errno.ENOTSUP, errno.ENOSYS)
_UNMARKED = (errno.ENODATA, errno.ENOENT, errno.EACCES, errno.EPERM)
_LARGEST = 4096
"""Bytes of a mark that are read: it has some hundred."""


class HalfWritten(NamedTuple):
    """Which job writes over a file, and the mode, owner and group that this had before. Unless it is ``sure``, the file
    may be another one, that was saved since."""

    job: str
    mode: int
    uid: int
    gid: int
    sure: bool = True

    @property
    def before(self) -> tuple[int, int, int]:
        return self.mode, self.uid, self.gid

    def packed(self) -> bytes:
        return b"%s %o %d %d\n" % (self.job.encode(), self.mode, self.uid, self.gid)

    @classmethod
    def unpacked(cls, text: bytes) -> HalfWritten:
        """A mark that makes no sense tells only that there is one: its job is empty, which is nobody's."""
        words = text.split()
        with suppress(ValueError, UnicodeDecodeError, OverflowError):
            job, mode, uid, gid = words
            told = cls(job.decode("ascii"), int(mode, 8), int(uid), int(gid))
            if stat.S_ISREG(told.mode) and min(told.before) >= 0 and max(told.before) < 1 << 32:
                return told
        return cls("", stat.S_IFREG | 0o600, os.geteuid(), os.getegid())


@cache
def _is_root() -> bool:
    """May this process use ``trusted.*``? Not who is root in a user namespace of his own."""
    return capable(CAP_SYS_ADMIN) and maps_all_ids()


def _attribute() -> str:
    return NAMES[0] if _is_root() else NAMES[1]


def find(directory: int, name: bytes, status: os.stat_result, descriptor: int | None = None) -> HalfWritten | None:
    """The mark of a file, which has that ``status`` and may be open; None if it has none.

    Raises ``Problem``.
    """
    is_open = descriptor is not None
    path = b"/proc/self/fd/%d/%s" % (directory, name) if descriptor is None else descriptor
    try:
        return HalfWritten.unpacked(os.getxattr(path, _attribute(), follow_symlinks=is_open))
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            return _find_beside(directory, name, status)
        if error.errno in _UNMARKED:
            return None
        raise Problem.of(f"getxattr {_attribute()}", error) from error


def before(directory: int, name: bytes, descriptor: int, status: os.stat_result, job: str) -> HalfWritten:
    """The mark that ``job`` shall leave on the open file: as an older mark tells, if that is believed.

    By a name its owner could have another file's mark read. Raises ``Problem``.
    """
    told = find(directory, name, status, descriptor) if is_undressed(status) else None
    if told is not None and told.sure and told.job and (_is_root() or told.job == job):
        return told._replace(job=job)
    return HalfWritten(job, status.st_mode, status.st_uid, status.st_gid)


def leave(
    directory: int, name: bytes, descriptor: int, status: os.stat_result, mark: HalfWritten, temporary: bytes
) -> None:
    """Marks what is open, and is ``name`` in ``directory``; ``temporary`` is a free name. Raises ``Problem``."""
    try:
        os.setxattr(descriptor, _attribute(), mark.packed())
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTES:
            raise Problem.of(f"setxattr {_attribute()}", error) from error
        identity = identity_of(descriptor, status, 0, made=False)
        with failing("open"):
            above = open_patiently(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        with held_open(above), replacing(above, beside(name), temporary) as stream:
            told = identity.inode, identity.mark.hex().encode() or b"-", name
            stream.write(mark.packed() + b"%d %b\n%b" % told)


def clear(directory: int, name: bytes, descriptor: int) -> None:
    """Takes the mark from what is open, and is ``name`` in ``directory``, if it has one; raises ``Problem``."""
    try:
        os.removexattr(descriptor, _attribute())
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            remove(directory, beside(name))
        elif error.errno != errno.ENODATA:
            raise Problem.of("removexattr", error) from error


def drop_stale(directory: int, sidecar: bytes, job: str, *, is_filled: bool) -> None:
    """Removes a file that ``job`` has put beside another, if that has gone, or been replaced since; raises ``Problem``.

    Unless that ``is_filled``, it keeps what is there from passing for whole where it may be the same under another
    number (FUSE).
    """
    found = _read_beside(directory, sidecar)
    if found is None or beside(found.name) != sidecar or found.mark.job != job:
        return
    try:
        present = os.stat(found.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        remove(directory, sidecar)
    except OSError as error:
        raise Problem.of("stat", error) from error
    else:
        if present.st_ino != found.identity.inode and (is_filled or not lies_on(FUSE, directory)):
            remove(directory, sidecar)


def drop_all_stale(directory: int, job: str) -> None:
    """As ``drop_stale`` for each such file in an open directory."""
    with failing("readdir"):
        names = [name for name in names_in(directory) if name.startswith(SIDECAR)]
    for name in names:
        drop_stale(directory, name, job, is_filled=False)


def refuse(names: list[str]) -> None:
    """Raises ``Problem`` for a source with attributes of these ``names`` if the mark is among them."""
    if any(mark in names for mark in NAMES):
        text = "a copy with --inplace has not finished it, or was not told that its contents are safe"
        raise Problem("read", 0, on_source=True, text=f"the file is incomplete: {text}")


def beside(name: bytes) -> bytes:
    """The name of the file beside ``name`` that marks it."""
    from hashlib import blake2b

    return SIDECAR + blake2b(name, digest_size=8).hexdigest().encode()


def of_sidecar() -> Problem:
    """Why such a file, which is found in a source, stands for one that is not whole."""
    return Problem("read", 0, on_source=True, text="it tells that a file beside it is incomplete")


def unsure(name: bytes) -> Problem:
    """Why ``name``, whose mark is not sure, neither stays nor gives way."""
    text = (
        "it may be half written by a copy with --inplace, or have been saved since: remove it unless it is whole, "
        f"and then remove {os.fsdecode(beside(name))}"
    )
    return Problem("create", errno.EEXIST, text=text)


def refuse_marked(descriptor: int) -> None:
    """As ``refuse``, where nobody has asked for names."""
    refuse([name for name in NAMES if _has(descriptor, name)])


def is_marked(descriptor: int) -> bool:
    """Has an open file the mark, root's or another's?"""
    return any(_has(descriptor, mark) for mark in NAMES)


def _has(descriptor: int, name: str) -> bool:
    with suppress(OSError):
        os.getxattr(descriptor, name)
        return True
    return False


class _Beside(NamedTuple):
    """What the file beside a marked one tells: the mark, which file that is, and its name."""

    mark: HalfWritten
    identity: Identity
    name: bytes


def _find_beside(directory: int, name: bytes, status: os.stat_result) -> HalfWritten | None:
    """Only from a file of ours that nobody else can have written, and that was made for this one."""
    found = _read_beside(directory, beside(name))
    if found is None or found.name != name:
        return None
    with failing("open"):
        held = open_patiently(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    with held_open(held):
        likeness = found.identity.compare(identity_of(held, status, 0, made=False))
        if likeness is Likeness.OTHER and not lies_on(FUSE, held):
            return None
    is_sure = likeness is Likeness.SAME or (likeness is Likeness.UNTOLD and is_undressed(status))
    return found.mark._replace(sure=is_sure)


def _read_beside(directory: int, name: bytes) -> _Beside | None:
    """None where there is no such file, or not one that a job of ours has written."""
    try:
        reading = open_patiently(name, FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EACCES, errno.ENXIO):
            return None
        raise Problem.of("open", error) from error
    with held_open(reading), failing("read"):
        status = status_of(reading)
        text = os.read(reading, _LARGEST) if is_undressed(status) and status.st_nlink == 1 else b""
    with suppress(ValueError):
        line, words, of_name = text.split(b"\n", 2)
        inode, mark = words.split(b" ")
        identity = Identity(0, int(inode), b"" if mark == b"-" else bytes.fromhex(mark.decode()))
        return _Beside(HalfWritten.unpacked(line), identity, of_name)
    return None
