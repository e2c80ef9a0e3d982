"""``pbcast``: send files to a directory of each host. All ranks load this module; rank 0 chooses the files and reports
the result.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from pcopy.engine.task import Spawn, Task
from pcopy.errors import OK, Refused
from pcopy.jobs.path_read import unlookable
from pcopy.jobs.paths import absolute
from pcopy.launch.launcher import is_launched
from pcopy.launch.tool import Ended
from pcopy.report.gauge import Done, Stage, Stages
from pcopy.report.streams import tell
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.job import InFront, Job, Options, Sink, Totals
from pcopy.tasks.base.kind import Kind
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.broadcast.directory import (
    CheckDirectory,
    HostDirectory,
    LookAround,
    OpenTarget,
    SharedBy,
    SyncTarget,
)
from pcopy.tasks.broadcast.send import Outgoing, Send, Stream
from pcopy.text import counted, for_shell, shown
from pcopy.tools.arguments import BroadcastArguments
from pcopy.tools.director import RepeatableDirector, RepeatableTool
from pcopy.tools.ending import SummedPreparation
from pcopy.tools.outputs import check_told, refuse_replacing
from pcopy.tools.summary import summary_values
from pcopy.units import show_seconds, show_size

OPEN, LOOK, SEND, SYNC = range(4)
"""The phases, in their order: open the directories, find hosts that share one, send the files, sync."""

_COUNTED = ("found", "files", "bytes", "skipped", "failed", "excused")
"""Counters of ``Totals`` that ``--json`` shows; they are sums over all hosts."""


def _sent(totals: Totals) -> Done:
    """Return the progress of the phase ``send``, summed over all hosts."""
    items = totals.files + totals.skipped + totals.failed
    # Holes are not sent: ``moved`` may be smaller than ``bytes``, the sizes of the complete files.
    handled = max(totals.moved, totals.bytes) + totals.skipped_bytes + totals.failed_bytes
    return Done(items, totals.found, handled, totals.found_bytes, totals.moved, False)


STAGES: Stages = {"send": Stage(_sent)}
"""The only stage of progress."""


class ToSend(InFront):
    """Sink on rank 0 that also holds the arguments for the director."""

    def __init__(self, screen: Sink, files: tuple[bytes, ...], directory: bytes, needed: int, quiet: bool) -> None:
        super().__init__(screen)
        self.files = files
        self.directory = directory
        self.needed = needed
        """Total size of all files in bytes, without their holes."""
        self.quiet = quiet


class BroadcastDirector(RepeatableDirector):
    """Director of ``pbcast``: OPEN, LOOK, SEND and, with ``--sync``, SYNC; a dry run has OPEN only."""

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        rank, sink = self._rank, self._wanted
        owners: Sequence[int] = rank.leaders
        task: Kind = LookAround()
        if self._job.options.dry_run:
            task = CheckDirectory(sink.directory, tuple(map(os.path.basename, sink.files)), sink.needed)
        elif phase == OPEN:
            owners, task = range(rank.size), OpenTarget(sink.directory)
        elif phase == SEND:
            owners, task = (0,), Send(sink.files)
        elif phase == SYNC:
            task = SyncTarget()
        return [Spawn(phase, encode(task), 0, owner=owner) for owner in owners]

    @property
    def _wanted(self) -> ToSend:
        """The sink of rank 0, which holds the arguments."""
        sink = self._rank.sink
        assert isinstance(sink, ToSend)
        return sink

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        if phase == LOOK and not self._wanted.quiet:
            self._rank.tell((), self._rank.own(SharedBy).told(self._wanted.directory))
        last = OPEN if self._job.options.dry_run else SYNC if self._job.options.sync else SEND
        return phase + 1 if phase < last else None


class Broadcast(RepeatableTool):
    """The program ``pbcast``. In its counters, an item is one file on one host."""

    name = "pbcast"
    writes = False  # The target directories of the hosts may differ: no probe file has to show that they are one.
    stages = STAGES
    done = "sent"
    director = BroadcastDirector

    def phase_name(self, phase: int) -> str:
        return ("open", "look", "send", "sync")[phase] if 0 <= phase <= SYNC else "send"

    def discard(self, rank: Rank, forgotten: Iterable[Task], since: int) -> None:
        """Remove files that are not complete and the probe files, and close the directories, however the
        job has ended.
        """
        if rank.number == 0:
            rank.own(Outgoing).close()
        if rank.number in rank.leaders:
            rank.own(Stream).close()
        rank.own(HostDirectory).close()


BROADCAST = Broadcast()
"""The only instance of ``Broadcast``."""


class BroadcastPreparation(SummedPreparation):
    """The job of ``pbcast`` on rank 0: checks the files and the directory, and reports the result."""

    program, stopped = "pbcast", "repeat the command to send all files again"

    def __init__(self, arguments: BroadcastArguments) -> None:
        """Check the arguments and prepare the job. Raise ``Refused`` if a file cannot be sent; nothing is modified."""
        super().__init__(0 if is_launched(os.environ) else 1, 1, arguments.telling, dry_run=arguments.dry_run)
        self.incomplete = f"not every host {'can take' if self.dry_run else 'has'} all files"
        self.arguments = arguments
        checked = [_checked(path) for path in arguments.files]
        self._files = tuple(path for path, _ in checked)
        _refuse_equal_names(self._files)
        self._directory = _target(arguments.directory)
        for given, (path, status) in zip(arguments.files, checked, strict=True):
            _refuse_over_link(given, os.path.join(self._directory, os.path.basename(path)), status)
        sent = {os.path.basename(path): (status.st_dev, status.st_ino) for path, status in checked}
        refuse_replacing(self.telling, sent, self._directory)
        check_told(self.telling, (), "is sent")
        self._size = sum(status.st_size for _, status in checked)
        self._needed = sum(min(status.st_size, status.st_blocks * 512) for _, status in checked)
        options = Options(
            termination=arguments.termination,
            sync=arguments.sync,
            fsync=arguments.fsync,
            dry_run=arguments.dry_run,
            bwlimit=arguments.bwlimit,
        )
        self.job = Job(os.urandom(5).hex(), 1, (), options)

    def sink(self, screen: Sink) -> Sink:
        return ToSend(screen, self._files, self._directory, self._needed, self.telling.quiet)

    def settle(self, rank: Rank, totals: Totals) -> int:
        self._hosts = len(rank.leaders)
        return OK

    def tell_how_to_go_on(self) -> None:
        tell("pbcast", "repeat the command to send all files again")

    def summary(self, ended: Ended, seconds: float, ranks: int) -> dict[str, object]:
        return {
            **summary_values(ended.totals, _COUNTED, seconds, ranks, ended.status),
            "sources": len(self._files),
            "dry_run": self.dry_run,
            "bytes_per_second": round(_rate(ended.totals, seconds)),
        }

    def lines(self, ended: Ended, seconds: float, ranks: int) -> Iterator[str]:
        totals = ended.totals
        sums = [f"{totals.files:,} written", f"{totals.skipped:,} skipped", f"{totals.failed:,} failed"]
        if rest := totals.found - totals.files - totals.skipped - totals.failed:
            sums.append(f"{rest:,} not reached")
        sources = counted(len(self._files), "file", "files")
        if self.dry_run:
            hosts = counted(totals.found, "host", "hosts")
            failed = f": {totals.failed:,} cannot take them" if totals.failed else ", which can take them"
            yield f"{sources} of {show_size(self._size)} would be sent to {hosts}{failed}"
            return
        yield f"{sources} to each host: {totals.found:,} begun = {' + '.join(sums)}"
        rate, ways = show_size(_rate(totals, seconds)), counted(ranks, "rank", "ranks")
        written = f"{show_size(totals.bytes)} written in {show_seconds(seconds)}"
        yield f"{written}: {rate}/s on all hosts together, with {ways}"


def _rate(totals: Totals, seconds: float) -> float:
    """Return the bytes per second that all hosts together wrote."""
    return totals.bytes / seconds if seconds > 0 else 0.0


def _checked(path: bytes) -> tuple[bytes, os.stat_result]:
    """Return the absolute path and the status of a regular file that can be read. Raise ``Refused`` for
    anything else.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise unlookable(path, error) from None
    if stat.S_ISDIR(status.st_mode):
        advice = f"pack it (ptar -c -f FILE.tar {for_shell(path)}), or copy it with pcopy to where all hosts see it"
        raise Refused(f"{shown(path)}: is a directory, and pbcast sends files: {advice}")
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"{shown(path)}: is no regular file; put its contents into a file")
    if not os.access(path, os.R_OK):
        raise Refused(f"{shown(path)}: no permission to read it; check its mode")
    return absolute(path), status


def _refuse_equal_names(files: Sequence[bytes]) -> None:
    """Raise ``Refused`` if two files have the same name, or if one is named twice."""
    names: dict[bytes, bytes] = {}
    for path in files:
        name = os.path.basename(path)
        earlier = names.get(name)
        if earlier == path:
            raise Refused(f"{shown(path)}: is named twice")
        if earlier is not None:
            raise Refused(f"{shown(earlier)} and {shown(path)} would get the same name; send them to two directories")
        names[name] = path


def _refuse_over_link(given: bytes, target: bytes, status: os.stat_result) -> None:
    """Raise ``Refused`` if ``target`` is a symbolic link to the file that is sent: the link would be replaced by a
    copy.

    cp(1) refuses this too, with the message that both "are the same file".
    """
    with suppress(OSError):
        if os.path.islink(target) and os.path.samestat(os.stat(target), status):
            raise Refused(
                f"{shown(target)}: is a symbolic link to {shown(given)}; remove it, or name another directory"
            )


def _target(path: bytes) -> bytes:
    """Return the absolute path of the target directory. Raise ``Refused`` if it is not a directory on this host."""
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        raise Refused(
            f"{unlookable(path, error)}; the last argument must be a directory that exists on each host"
        ) from None
    if not is_directory:
        raise Refused(f"{shown(path)}: is no directory; the last argument must be one that exists on each host")
    return absolute(path)
