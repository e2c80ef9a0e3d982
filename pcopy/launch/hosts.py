"""Before work the ranks of a job make sure that they run the same pcopy and see the same directories.

Rule: no name is believed. Two hosts may call different file systems by the same path, and different directories
may have equal inode numbers, so rank 0 writes a random number into a small file, and one rank of each other *place* (a
host's kernel and a mount namespace there) reads it. Ranks of one place see the same and need no proof.

The first message is read by other versions of pcopy too: it stays a tuple that begins with the version.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from pcopy import __version__
from pcopy.errors import Refused
from pcopy.fsio.durable import boot_id
from pcopy.fsio.kernel.choose import kernel_name
from pcopy.fsio.patience import open_patiently
from pcopy.launch.group import Group, Hello
from pcopy.text import shown

PATIENCE = 3.0
"""Seconds after which a file that one host has made has to be seen by another."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def introduce(words: Sequence[str]) -> Hello:
    """This rank's hello; ``words`` are its arguments."""
    host = socket.gethostname()
    arguments = hashlib.blake2b(b"\0".join(map(os.fsencode, words)), digest_size=16).hexdigest()
    places = boot_id() or host, _namespace("mnt"), _namespace("pid")
    try:
        kernel = kernel_name()
    except Refused:  # which is told when all have met
        kernel = ""
    return Hello(__version__, host, *places, os.getpid(), arguments, kernel=kernel)


def read_hellos(told: Sequence[Sequence[Any]]) -> list[Hello]:
    """The hellos of all ranks; raises ``Refused`` if not all run the same pcopy with the same arguments."""
    for rank, hello in enumerate(told):
        if hello[0] != told[0][0]:
            raise Refused(
                f"rank {rank} on {hello[1]} runs pcopy {hello[0]}, rank 0 on {told[0][1]} pcopy {told[0][0]}: "
                "all hosts need the same version"
            )
    hellos = [Hello(*hello) for hello in told]
    for rank, known in enumerate(hellos):
        if known.tasks != hellos[0].tasks:
            raise Refused(
                f"rank {rank} on {known.host} packs tasks as version {known.tasks}, rank 0 on {hellos[0].host} as "
                f"version {hellos[0].tasks}: all hosts need the same pcopy"
            )
        if known.arguments != hellos[0].arguments:
            raise Refused(
                f"rank {rank} on {known.host} was started with other arguments than rank 0: one job at a time"
            )
    return hellos


def neighbour(hellos: Sequence[Hello], rank: int) -> int | None:
    """The rank after ``rank`` in the ring of those whose processes it can see; None if there is no other."""
    seen = [(hello.machine, hello.processes) for hello in hellos]
    ring = [other for other, its in enumerate(seen) if its == seen[rank]]
    following = ring[(ring.index(rank) + 1) % len(ring)]
    return None if following == rank else following


def show_same_directory(group: Group, directory: int, path: bytes, name: str, *, required: bool = True) -> None:
    """Every place shows that its ``directory`` (a descriptor, ``path`` for people) is rank 0's. Collective.

    ``name`` is that of the file that is made for it, and removed again. Unless that is ``required`` what rank 0 can't
    write is not shown. Raises ``Refused`` on every rank alike.
    """
    hellos, places = group.hellos, [hello.place for hello in group.hellos]
    readers = [places.index(place) for place in dict.fromkeys(places)][1:]
    if not readers:
        return
    nonce = os.urandom(16).hex()
    before, trouble = _make(directory, name, nonce.encode()) if group.rank == 0 else (None, "")
    try:
        if trouble := group.broadcast(trouble):
            if not required:
                return
            raise Refused(f"{shown(path)}: cannot be written, so that other hosts can't be shown it: {trouble}")
        told = group.gather(_read(directory, name) if group.rank in readers else "")
    finally:
        if before is not None:
            _remove(directory, name, before)
    nonce = group.broadcast(nonce)
    for reader in readers:
        if told[reader] != nonce:
            raise Refused(f"{shown(path)}: is not the same directory on {hellos[reader].host} as on {hellos[0].host}")


def _make(directory: int, name: str, content: bytes) -> tuple[os.stat_result | None, str]:
    """Makes the file; returns what the directory was before, and what went wrong."""
    before = None
    try:
        before = os.stat(directory)
        with open(open_patiently(name, _MAKE, 0o600, dir_fd=directory), "wb") as file:
            file.write(content)
    except OSError as error:
        return before, error.strerror or str(error)
    return before, ""


def _remove(directory: int, name: str, before: os.stat_result) -> None:
    """Removes the file, and its trace on the directory's time where that is allowed."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)
    with contextlib.suppress(OSError):
        os.utime(".", ns=(before.st_atime_ns, before.st_mtime_ns), dir_fd=directory)


def _read(directory: int, name: str) -> str:
    """What the file holds; empty if it can't be seen in time."""
    end = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError):
            descriptor = open_patiently(name, _READ, dir_fd=directory)
            try:
                if content := os.read(descriptor, 64):
                    return content.decode("ascii", "replace")
            finally:
                os.close(descriptor)
        if time.monotonic() > end:
            return ""
        time.sleep(0.05)


def _namespace(kind: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/ns/{kind}")
    return ""
