"""Tasks on the target directory of each host: open and check it, find out which hosts share it, and sync it.

Rule: equal paths do not prove that the directories of two hosts are the same. So the first rank of each host (its
leader) creates a probe file in its directory, and then all ranks look for the probe files of others. If several hosts
share a directory, only the first of them writes to it. The probe files are removed before anything is sent.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pcopy.background import run_in_background
from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.copy_methods import supports_rename_and_random_writes
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.temporary import create_private_file, remove_item_if_present
from pcopy.libc import free_space_in_bytes
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.text import printable_path
from pcopy.units import format_size

POLL_SECONDS = 0.005
"""Seconds between two checks whether a sync in another thread has ended."""

MAX_NAMED_HOSTS = 16
"""Maximum number of hosts that a message lists by name."""


class HostDirectory:
    """The target directory on the host of this rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.path = b""
        self.descriptor = -1
        self.problem: Problem | None = None
        """The error because of which nothing can be written to the directory, or None."""
        self.is_writer = rank.number in rank.first_ranks
        """True if this rank writes the files to this directory: it is the first rank of its host, and no earlier host
        shares the directory.
        """
        self._probe = b""
        """Name of the probe file while it exists, else empty."""

    @property
    def host(self) -> str:
        """Name of the host on which this rank runs."""
        return os.uname().nodename

    def open(self, path: bytes, *, creates_probe: bool = True) -> None:
        """Open the target directory ``path`` on this host. An error is stored in ``problem``.

        With ``creates_probe``, the first rank of a host (its leader) also creates its probe file, by which other hosts
        recognise that they use the same directory.
        """
        self.path = path
        try:
            with errors_as_problem("open"):
                self.descriptor = open_with_retries(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if creates_probe and self.is_writer and self._rank.size > 1:
                close_ignoring_errors(create_private_file(self.descriptor, self.probe_file_name(self._rank.number)))
                self._probe = self.probe_file_name(self._rank.number)
        except Problem as problem:
            self.problem = problem

    def probe_file_name(self, rank: int) -> bytes:
        """Return the name of the probe file that the rank number ``rank`` creates."""
        return b".pcopy-%s-probe-%d" % (self._rank.job.name.encode(), rank)

    def sees_probe_file_of_rank(self, rank: int) -> bool:
        """Return True if the probe file of the rank number ``rank`` is in this directory, so that both ranks use the
        same directory.
        """
        try:
            os.stat(self.probe_file_name(rank), dir_fd=self.descriptor, follow_symlinks=False)
        except OSError:
            return False
        return True

    def remove_probe(self) -> None:
        """Remove the probe file of this rank, after all ranks have looked for it. May be called again."""
        probe, self._probe = self._probe, b""
        if probe:
            with suppress(OSError):
                remove_item_if_present(self.descriptor, probe)

    def close(self) -> None:
        """Remove the probe file and close the directory. May be called again."""
        self.remove_probe()
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            close_ignoring_errors(descriptor)


class HostTask(TaskKind, is_note=False):
    """Base class of tasks that concern the directory of a host, which is not a root of the job."""

    def subject(self) -> None:
        return None


class OpenHostDirectory(HostTask, code=160, doing="opening the directory of this host"):
    """Task that opens the target directory on this host. It also checks that files can be created and renamed there,
    unless the file system is known to allow that.
    """

    directory: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        target = rank.shared_instance(HostDirectory)
        target.open(self.directory)
        if target.problem is None and target.is_writer and not supports_rename_and_random_writes(self.directory):
            from pcopy.fsio.sequential import (
                examine_supported_operations,  # Imported here because few file systems need it.
            )

            if why := examine_supported_operations(self.directory).reason_renaming_is_impossible:
                text = f"{why}: send to another directory, and copy the files there with pcopy"
                target.problem = Problem("create", 0, text=text)


class CheckHostDirectory(HostTask, code=165, doing="checking the directory of this host"):
    """Task of a dry run that checks the target directory of this host: whether files called ``names`` can be created,
    and whether ``needed_bytes`` bytes are free.

    Each host counts as one item.
    """

    directory: bytes
    names: tuple[bytes, ...]
    needed_bytes: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        target = rank.shared_instance(HostDirectory)
        target.open(self.directory, creates_probe=False)
        problems = list(self._directory_problems(target))
        result.count(counts.FOUND)
        result.count(counts.FAILED if problems else counts.FILES)
        for name, problem in problems:
            path = os.path.join(self.directory, name) if name else self.directory
            result.report_failure(path, problem_naming_host(problem, target.host))

    def _directory_problems(self, target: HostDirectory) -> Iterator[tuple[bytes, Problem]]:
        """Generator: yield each reason for which files could not be written to the directory ``target``: the name of
        the file concerned (empty: the directory), and the problem.
        """
        if target.problem is not None:
            yield b"", target.problem
            return
        try:
            with errors_as_problem("statvfs"):
                file_system = os.statvfs(target.descriptor)
        except Problem as problem:
            yield b"", problem
            return
        if file_system.f_flag & os.ST_RDONLY:
            yield b"", Problem("create", errno.EROFS)
            return
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=target.descriptor, effective_ids=True):
            yield b"", Problem("create", errno.EACCES)
            return
        with suppress(OSError):  # The free space is unknown then.
            free = free_space_in_bytes(file_system)
            if free < self.needed_bytes:
                yield (
                    b"",
                    Problem(
                        "write", 0, text=f"{format_size(self.needed_bytes)} are needed, {format_size(free)} are free"
                    ),
                )
        for name in self.names:
            with suppress(OSError):
                if stat.S_ISDIR(os.stat(name, dir_fd=target.descriptor, follow_symlinks=False).st_mode):
                    yield name, Problem("rename", errno.EISDIR)


class FindHostsSharingDirectory(HostTask, code=161, doing="finding hosts that share a directory"):
    """Task that finds out which hosts share a target directory, and whether all ranks of a host see the same one.

    A leader (first rank of a host) looks for the probe files of the leaders before it, and lets the other ranks of its
    host look for its own. If a leader could not create its probe file, the other ranks of its host do not look: the
    host gets no files, and the error is reported for each file.
    """

    def run(self, rank: Rank, result: TaskResult) -> None:
        target, names = rank.shared_instance(HostDirectory), rank.hosts.names
        if rank.number not in rank.first_ranks:
            self._check_same_directory(rank, target, names.index(names[rank.number]), result)
            return
        if target.problem is not None or rank.size == 1:
            return
        for other_rank, name in enumerate(names):
            if other_rank != rank.number and name == names[rank.number]:
                result.spawn_task(FindHostsSharingDirectory(), owner=other_rank)
        earlier_leaders = rank.first_ranks[: rank.first_ranks.index(rank.number)]
        first = next(filter(target.sees_probe_file_of_rank, earlier_leaders), None)
        if first is not None:
            target.is_writer = False
            result.spawn_task(SharedDirectoryNote(first, rank.number), owner=0)

    def _check_same_directory(self, rank: Rank, target: HostDirectory, leader: int, result: TaskResult) -> None:
        """Report a failure if this rank does not see the same directory as ``leader``, the first rank of its host."""
        problem = target.problem and problem_naming_host(target.problem, f"rank {rank.number} of {target.host}")
        if problem is None and not target.sees_probe_file_of_rank(leader):
            text = f"is another directory for rank {rank.number} than for the first rank of {target.host}; "
            text += "give each host a name of its own, and each rank of it the same mounts"
            problem = Problem("open", 0, text=text)
        if problem is not None:
            result.count(counts.FOUND)
            result.count(counts.FAILED)
            result.report_failure(target.path, problem)


class SharedDirectories:
    """On rank 0: which hosts share a target directory. Each group of such hosts is stored as the numbers of their
    leaders (first ranks); the key is the first of these leaders, the only one that writes to the directory.
    """

    def __init__(self, rank: Rank) -> None:
        self._names = rank.hosts.names
        self.sharing_leaders: dict[int, list[int]] = {}

    def shared_directory_messages(self, path: bytes) -> list[str]:
        """Return a message for each directory that several hosts share. ``path`` is the path of the directory on all
        hosts.
        """
        return [self._message(path, (first, *sorted(others))) for first, others in sorted(self.sharing_leaders.items())]

    def _message(self, path: bytes, leaders: Sequence[int]) -> str:
        """Return the message for the user about a directory, ``path``, that several hosts share. ``leaders`` are the
        first ranks of these hosts.
        """
        hosts = ", ".join(self._names[each] for each in leaders[:MAX_NAMED_HOSTS])
        more = f" and {len(leaders) - MAX_NAMED_HOSTS:,} more" if len(leaders) > MAX_NAMED_HOSTS else ""
        return f"{printable_path(path)}: is one directory on {hosts}{more}: it is written once"


class SharedDirectoryNote(TaskWithoutDirectory, code=168, doing="recording hosts that share a directory"):
    """Message to rank 0: the leader (first rank of a host) ``other`` sees the probe file of the leader ``first``, so
    both use the same directory.
    """

    first: int
    other: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(SharedDirectories).sharing_leaders.setdefault(self.first, []).append(self.other)


class SyncHostDirectory(HostTask, code=167, doing="syncing the directory of this host"):
    """Task that syncs the file system of the target directory. Another thread makes the system call, so that the rank
    can handle messages meanwhile.
    """

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        target = rank.shared_instance(HostDirectory)
        if target.descriptor < 0 or not target.is_writer:
            return
        errors: list[Problem] = [Problem("syncfs", errno.ENOMEM)]  # This error remains if the thread cannot start.

        def sync() -> None:
            try:
                rank.syncer.sync(target.descriptor, -1)
                errors.clear()
            except OSError as error:
                errors[:] = [Problem.from_error("syncfs", error)]

        yield from run_in_background(sync, POLL_SECONDS)
        for problem in errors:
            result.count(counts.UNSYNCED)
            result.report_failure(target.path, problem_naming_host(problem, target.host))


def problem_naming_host(problem: Problem, host: str) -> Problem:
    """Return ``problem`` with the name of the host added to its text."""
    text = problem.strerror or ""
    is_system = problem.errno and text == os.strerror(problem.errno)
    return Problem(problem.operation, problem.errno or 0, text=f"on {host}" if is_system else f"{text}, on {host}")
