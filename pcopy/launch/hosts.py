"""Check, before a job starts, that its ranks run the same pcopy and see the same directories.

Rule: names prove nothing. Two hosts may have different file systems at the same path, and different directories may
have equal inode numbers. So rank 0 writes a random number into a small file in the directory, and one rank of each
other *place* (a running operating system and a mount namespace on it) reads the file. Ranks of the same place see the
same mounts and need no proof.

Other versions of pcopy read the message with which each rank describes itself, too. That message must remain a tuple
that begins with the version of pcopy and the name of the host.
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
from pcopy.errors import RequestRefused, path_refused
from pcopy.fsio.backend.choose import backend_name
from pcopy.fsio.durable import boot_id
from pcopy.fsio.retries import open_with_retries
from pcopy.launch.group import RankDescription, RankGroup

PROBE_VISIBLE_TIMEOUT = 3.0
"""Seconds that another host waits until it sees a file that rank 0 has created; attribute caches of file systems cause
a delay.
"""
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def own_rank_description(words: Sequence[str]) -> RankDescription:
    """Return the description that this rank sends to all other ranks: version of pcopy, host, namespaces and so on.
    ``words`` are its command line arguments.
    """
    host = socket.gethostname()
    arguments = hashlib.blake2b(b"\0".join(map(os.fsencode, words)), digest_size=16).hexdigest()
    places = boot_id() or host, _namespace_id("mnt"), _namespace_id("pid")
    try:
        backend = backend_name()
    except RequestRefused:  # reported later, once all ranks have exchanged their descriptions
        backend = ""
    return RankDescription(__version__, host, *places, os.getpid(), arguments, backend=backend)


def checked_rank_descriptions(messages: Sequence[Sequence[Any]]) -> list[RankDescription]:
    """Return the descriptions of all ranks, after checking that all ranks run the same version of pcopy with the same
    arguments. ``messages`` are the fields of each description, as they were received.

    Raise ``RequestRefused`` if they do not.
    """
    for rank, hello in enumerate(messages):
        if hello[0] != messages[0][0]:
            raise RequestRefused(
                f"rank {rank} on {hello[1]} runs pcopy {hello[0]}, rank 0 on {messages[0][1]} pcopy {messages[0][0]}: "
                "all hosts need the same version"
            )
    hellos = [RankDescription(*hello) for hello in messages]
    for rank, described in enumerate(hellos):
        if described.task_format != hellos[0].task_format:
            raise RequestRefused(
                f"rank {rank} on {described.host} uses version {described.task_format} of the task format, rank 0 on "
                f"{hellos[0].host} version {hellos[0].task_format}: all hosts need the same version of pcopy"
            )
        if described.arguments_digest != hellos[0].arguments_digest:
            raise RequestRefused(
                f"rank {rank} on {described.host} was started with other arguments than rank 0: start all ranks with "
                "the same arguments"
            )
    return hellos


def next_rank_on_host(descriptions: Sequence[RankDescription], rank: int) -> int | None:
    """Return the rank that ``rank`` is to watch: the next one on the same host (in the same process namespace). After
    the last one the first one follows. Return None if there is no other one. ``descriptions`` are the descriptions of
    all ranks.
    """
    namespaces = [(hello.machine, hello.process_namespace) for hello in descriptions]
    ring = [other for other, namespace in enumerate(namespaces) if namespace == namespaces[rank]]
    following = ring[(ring.index(rank) + 1) % len(ring)]
    return None if following == rank else following


def check_directory_is_same_on_all_hosts(
    group: RankGroup, directory: int, path: bytes, name: str, *, required: bool = True
) -> None:
    """Check that ``directory`` is the same directory on all hosts (and in all mount namespaces) as on rank 0.
    Collective: all ranks must call it.

    Raise ``RequestRefused`` on all ranks if it is not the same directory.

    Args:
        group: the processes of the job.
        directory: descriptor of the directory on this rank.
        path: path of the directory, for messages.
        name: name of the file that rank 0 creates in the directory for the check, and removes again.
        required: if rank 0 cannot write to the directory, True raises ``RequestRefused``, and False skips the check.
    """
    hellos, places = group.descriptions, [hello.place for hello in group.descriptions]
    readers = [places.index(place) for place in dict.fromkeys(places)][1:]
    if not readers:
        return
    nonce = os.urandom(16).hex()
    before, error = _create_probe_file(directory, name, nonce.encode()) if group.rank == 0 else (None, "")
    try:
        if error := group.broadcast(error):
            if not required:
                return
            raise path_refused(
                path, f"cannot be written to ({error}), so other hosts cannot verify that they see the same directory"
            )
        contents = group.gather(_read_probe_file(directory, name) if group.rank in readers else "")
    finally:
        if before is not None:
            _remove_probe_file(directory, name, before)
    nonce = group.broadcast(nonce)
    for reader in readers:
        if contents[reader] != nonce:
            raise path_refused(path, f"is not the same directory on {hellos[reader].host} as on {hellos[0].host}")


def _create_probe_file(directory: int, name: str, content: bytes) -> tuple[os.stat_result | None, str]:
    """On rank 0: create the file ``name`` with this ``content`` in ``directory``; other hosts read it, to find out
    whether they see the same directory. Return the status of the directory before that (None if it cannot be read),
    and an error message (empty if the file was created).
    """
    before = None
    try:
        before = os.stat(directory)
        with open(open_with_retries(name, _CREATE_FLAGS, 0o600, dir_fd=directory), "wb") as file:
            file.write(content)
    except OSError as error:
        return before, error.strerror or str(error)
    return before, ""


def _remove_probe_file(directory: int, name: str, before: os.stat_result) -> None:
    """Remove the file ``name``, with which hosts have compared ``directory``, and restore the times of the directory to
    those in ``before``. Ignore errors.
    """
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)
    with contextlib.suppress(OSError):
        os.utime(".", ns=(before.st_atime_ns, before.st_mtime_ns), dir_fd=directory)


def _read_probe_file(directory: int, name: str) -> str:
    """Return the contents of the file ``name`` in ``directory``, which rank 0 has created on another host; empty if it
    cannot be read within ``PROBE_VISIBLE_TIMEOUT`` seconds.
    """
    end = time.monotonic() + PROBE_VISIBLE_TIMEOUT
    while True:
        with contextlib.suppress(OSError):
            descriptor = open_with_retries(name, _READ_FLAGS, dir_fd=directory)
            try:
                if content := os.read(descriptor, 64):
                    return content.decode("ascii", "replace")
            finally:
                os.close(descriptor)
        if time.monotonic() > end:
            return ""
        time.sleep(0.05)


def _namespace_id(kind: str) -> str:
    """Return the identity of the namespace ``kind`` (a name in /proc/self/ns) of this process; empty if unknown."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/ns/{kind}")
    return ""
