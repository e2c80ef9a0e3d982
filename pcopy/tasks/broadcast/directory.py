"""OpenTarget, LookAround, SyncTarget: the directory on each host that gets the files; do hosts see one and the same?

Rule: no name is believed. The first rank of each host makes a small file in its directory, and then all look whose
files they see. Hosts that see one directory write it once: the first of them does.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from pcopy.beside import Beside
from pcopy.fsio.close import let_go
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.temporary import create, remove
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.text import shown
from pcopy.units import show_size

NAP = 0.005
"""Seconds that a slice waits for a sync."""


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

    def open(self, path: bytes) -> None:
        self.path = path
        try:
            with failing("open"):
                self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if self.is_written and self._rank.size > 1:
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

    def close(self) -> None:
        """May be called again."""
        probe, self._probe = self._probe, b""
        if probe:
            with suppress(OSError):
                remove(self.descriptor, probe)
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
        rank.own(HostDirectory).open(self.directory)


class CheckDirectory(OfHost, code=165, doing="checking the directory of this host"):
    """A dry run: may files be made in it, and is there room for so many bytes? The host counts as an item."""

    directory: bytes
    needed: int

    def run(self, rank: Rank, result: Result) -> None:
        directory = rank.own(HostDirectory)
        result.count(counts.FOUND)
        try:
            with failing("open"):
                directory.path = self.directory
                directory.descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=directory.descriptor, effective_ids=True):
                raise Problem("create", errno.EACCES)
            with failing("statvfs"):
                there = os.statvfs(directory.descriptor)
            free = there.f_bavail * there.f_frsize
            if free < self.needed:
                raise Problem("write", 0, text=f"{show_size(self.needed)} are needed, {show_size(free)} are free")
            result.count(counts.FILES)
        except Problem as problem:
            result.count(counts.FAILED)
            result.report(self.directory, on_host(problem, directory.host))


class LookAround(OfHost, code=161, doing="looking which hosts share a directory"):
    """Each leader looks for those before it; every other rank has to see what the leader of its host sees."""

    def run(self, rank: Rank, result: Result) -> None:
        target = rank.own(HostDirectory)
        if target.descriptor < 0 or rank.size == 1:
            return
        if rank.number not in rank.leaders:
            if not any(map(target.sees, rank.leaders)):
                text = f"is another directory for rank {rank.number} than for the first rank of {target.host}; "
                text += "give each host a name of its own, and each rank of it the same mounts"
                result.count(counts.FOUND)
                result.count(counts.FAILED)
                result.report(target.path, Problem("open", 0, text=text))
            return
        before = rank.leaders[: rank.leaders.index(rank.number)]
        if any(map(target.sees, before)):
            target.is_written = False
            text = f"is one directory on {target.host} and on another host: it is written once"
            result.notices.append(f"{shown(target.path)}: {text}")


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

        try:
            thread = Beside(sync)
        except OSError:  # no thread is to be had: then it is waited for
            sync()
        else:
            while not thread.is_over(NAP):
                yield None
        for problem in errors:
            result.count(counts.UNSYNCED)
            result.report(target.path, on_host(problem, target.host))


def on_host(problem: Problem, host: str) -> Problem:
    """The same, with the name of the host."""
    text = problem.strerror or ""
    is_system = problem.errno and text == os.strerror(problem.errno)
    return Problem(problem.operation, problem.errno or 0, text=f"on {host}" if is_system else f"{text}, on {host}")
