"""OpenTarget, LookAround, SyncTarget: the directory on each host that gets the files; do hosts see one and the same?

Rule: no name is believed. The first rank of each host makes a small file in its directory, and then all look whose
files they see. Hosts that see one directory write it once: the first of them does. Before anything is sent these files
are removed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pcopy.beside import done_beside
from pcopy.fsio.close import let_go
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.temporary import create, remove
from pcopy.fsio.ways import is_ordinary
from pcopy.libc import free_bytes
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Kind, Note, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.text import shown
from pcopy.units import show_size

NAP = 0.005
"""Seconds that a slice waits for a sync."""

MOST_NAMED = 16
"""Hosts that a line names."""


class HostDirectory:
    """The directory of this rank's host."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.path = b""
        self.descriptor = -1
        self.problem: Problem | None = None
        """Why nothing can be written there."""
        self.is_written = rank.number in rank.leaders
        """Is it this rank that writes it?"""
        self._probe = b""

    @property
    def host(self) -> str:
        return os.uname().nodename

    def open(self, path: bytes, *, shows: bool = True) -> None:
        """``shows``: others are to see which one it is. What goes wrong is its ``problem``."""
        self.path = path
        try:
            with failing("open"):
                self.descriptor = open_patiently(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if shows and self.is_written and self._rank.size > 1:
                let_go(create(self.descriptor, self.probe_of(self._rank.number)))
                self._probe = self.probe_of(self._rank.number)
        except Problem as problem:
            self.problem = problem

    def probe_of(self, rank: int) -> bytes:
        """What rank number so makes."""
        return b".pcopy-%s-probe-%d" % (self._rank.job.name.encode(), rank)

    def sees(self, rank: int) -> bool:
        """Has that rank made its file in this very directory?"""
        try:
            os.stat(self.probe_of(rank), dir_fd=self.descriptor, follow_symlinks=False)
        except OSError:
            return False
        return True

    def unshow(self) -> None:
        """All have looked. May be called again."""
        probe, self._probe = self._probe, b""
        if probe:
            with suppress(OSError):
                remove(self.descriptor, probe)

    def close(self) -> None:
        """May be called again."""
        self.unshow()
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            let_go(descriptor)


class OfHost(Kind, is_note=False):
    """It is about the directory of a host, which is no root."""

    def about(self) -> None:
        return None


class OpenTarget(OfHost, code=160, doing="opening the directory of this host"):
    directory: bytes

    def run(self, rank: Rank, result: Result) -> None:
        target = rank.own(HostDirectory)
        target.open(self.directory)
        if target.problem is None and target.is_written and not is_ordinary(self.directory):
            from pcopy.fsio.sequential import examine  # few directories need it

            if why := examine(self.directory).refusal:
                text = f"{why}: send to another directory, and copy the files there with pcopy"
                target.problem = Problem("create", 0, text=text)


class CheckDirectory(OfHost, code=165, doing="checking the directory of this host"):
    """A dry run: may files get these names in it, and is there room for so many bytes? The host counts as an item."""

    directory: bytes
    names: tuple[bytes, ...]
    needed: int

    def run(self, rank: Rank, result: Result) -> None:
        target = rank.own(HostDirectory)
        target.open(self.directory, shows=False)
        problems = list(self._problems(target))
        result.count(counts.FOUND)
        result.count(counts.FAILED if problems else counts.FILES)
        for name, problem in problems:
            path = os.path.join(self.directory, name) if name else self.directory
            result.report(path, on_host(problem, target.host))

    def _problems(self, target: HostDirectory) -> Iterator[tuple[bytes, Problem]]:
        """Each with the name that it is about, or none."""
        if target.problem is not None:
            yield b"", target.problem
            return
        try:
            with failing("statvfs"):
                there = os.statvfs(target.descriptor)
        except Problem as problem:
            yield b"", problem
            return
        if there.f_flag & os.ST_RDONLY:
            yield b"", Problem("create", errno.EROFS)
            return
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=target.descriptor, effective_ids=True):
            yield b"", Problem("create", errno.EACCES)
            return
        with suppress(OSError):  # unknown
            free = free_bytes(there)
            if free < self.needed:
                yield b"", Problem("write", 0, text=f"{show_size(self.needed)} are needed, {show_size(free)} are free")
        for name in self.names:
            with suppress(OSError):
                if stat.S_ISDIR(os.stat(name, dir_fd=target.descriptor, follow_symlinks=False).st_mode):
                    yield name, Problem("rename", errno.EISDIR)


class LookAround(OfHost, code=161, doing="looking which hosts share a directory"):
    """A leader looks for the leaders before it, and has the other ranks of its host look whether they see what it sees.
    Where it could make no file they do not: no file comes to that host, which is told once for each."""

    def run(self, rank: Rank, result: Result) -> None:
        target, names = rank.own(HostDirectory), rank.hosts.names
        if rank.number not in rank.leaders:
            self._look_beside(rank, target, names.index(names[rank.number]), result)
            return
        if target.problem is not None or rank.size == 1:
            return
        for other, name in enumerate(names):
            if other != rank.number and name == names[rank.number]:
                result.spawn(LookAround(), owner=other)
        before = rank.leaders[: rank.leaders.index(rank.number)]
        first = next(filter(target.sees, before), None)
        if first is not None:
            target.is_written = False
            result.spawn(SeesSame(first, rank.number), owner=0)

    def _look_beside(self, rank: Rank, target: HostDirectory, leader: int, result: Result) -> None:
        problem = target.problem and on_host(target.problem, f"rank {rank.number} of {target.host}")
        if problem is None and not target.sees(leader):
            text = f"is another directory for rank {rank.number} than for the first rank of {target.host}; "
            text += "give each host a name of its own, and each rank of it the same mounts"
            problem = Problem("open", 0, text=text)
        if problem is not None:
            result.count(counts.FOUND)
            result.count(counts.FAILED)
            result.report(target.path, problem)


class SharedBy:
    """On rank 0: the leaders that see one directory, by the first of them."""

    def __init__(self, rank: Rank) -> None:
        self._names = rank.hosts.names
        self.others: dict[int, list[int]] = {}

    def told(self, path: bytes) -> list[str]:
        """A line for each directory."""
        return [self._line(path, (first, *sorted(others))) for first, others in sorted(self.others.items())]

    def _line(self, path: bytes, leaders: Sequence[int]) -> str:
        hosts = ", ".join(self._names[each] for each in leaders[:MOST_NAMED])
        more = f" and {len(leaders) - MOST_NAMED:,} more" if len(leaders) > MOST_NAMED else ""
        return f"{shown(path)}: is one directory on {hosts}{more}: it is written once"


class SeesSame(Note, code=168, doing="noting which hosts share a directory"):
    """The leader ``other`` sees the directory of ``first``."""

    first: int
    other: int

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(SharedBy).others.setdefault(self.first, []).append(self.other)


class SyncTarget(OfHost, code=167, doing="syncing the directory of this host"):
    """Brings the file system to stable storage. A thread makes the sync, so that the rank goes on listening."""

    def run(self, rank: Rank, result: Result) -> Steps:
        target = rank.own(HostDirectory)
        if target.descriptor < 0 or not target.is_written:
            return
        errors: list[Problem] = [Problem("syncfs", errno.ENOMEM)]  # unless the thread says something else

        def sync() -> None:
            try:
                rank.syncer.sync(target.descriptor, -1)
                errors.clear()
            except OSError as error:
                errors[:] = [Problem.of("syncfs", error)]

        yield from done_beside(sync, NAP)
        for problem in errors:
            result.count(counts.UNSYNCED)
            result.report(target.path, on_host(problem, target.host))


def on_host(problem: Problem, host: str) -> Problem:
    """The same, with the name of the host."""
    text = problem.strerror or ""
    is_system = problem.errno and text == os.strerror(problem.errno)
    return Problem(problem.operation, problem.errno or 0, text=f"on {host}" if is_system else f"{text}, on {host}")
