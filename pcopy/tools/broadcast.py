"""``pbcast`` as a tool, which each rank knows; on rank 0: which files are sent, and what is told at the end."""

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
"""The phases."""

_COUNTED = ("found", "files", "bytes", "skipped", "failed", "excused")
"""Counters that ``--json`` shows, by their names in ``Totals``: of all hosts together."""


def _sent(totals: Totals) -> Done:
    items = totals.files + totals.skipped + totals.failed
    handled = max(totals.moved, totals.bytes) + totals.skipped_bytes + totals.failed_bytes  # holes do not move
    return Done(items, totals.found, handled, totals.found_bytes, totals.moved, False)


STAGES: Stages = {"send": Stage(_sent)}


class ToSend(InFront):
    """On rank 0: what the director has to know."""

    def __init__(self, screen: Sink, files: tuple[bytes, ...], directory: bytes, needed: int, quiet: bool) -> None:
        super().__init__(screen)
        self.files = files
        self.directory = directory
        self.needed = needed
        """Bytes that all files together take, without their holes."""
        self.quiet = quiet


class BroadcastDirector(RepeatableDirector):
    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        rank, wanted = self._rank, self._wanted
        owners: Sequence[int] = rank.leaders
        task: Kind = LookAround()
        if self._job.options.dry_run:
            task = CheckDirectory(wanted.directory, tuple(map(os.path.basename, wanted.files)), wanted.needed)
        elif phase == OPEN:
            owners, task = range(rank.size), OpenTarget(wanted.directory)
        elif phase == SEND:
            owners, task = (0,), Send(wanted.files)
        elif phase == SYNC:
            task = SyncTarget()
        return [Spawn(phase, encode(task), 0, owner=owner) for owner in owners]

    @property
    def _wanted(self) -> ToSend:
        wanted = self._rank.sink
        assert isinstance(wanted, ToSend)
        return wanted

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        if phase == LOOK and not self._wanted.quiet:
            self._rank.tell((), self._rank.own(SharedBy).told(self._wanted.directory))
        last = OPEN if self._job.options.dry_run else SYNC if self._job.options.sync else SEND
        return phase + 1 if phase < last else None


class Broadcast(RepeatableTool):
    """An item is one file on one host."""

    name = "pbcast"
    writes = False  # what hosts write is not to be the same directory
    stages = STAGES
    done = "sent"
    director = BroadcastDirector

    def phase_name(self, phase: int) -> str:
        return ("open", "look", "send", "sync")[phase] if 0 <= phase <= SYNC else "send"

    def discard(self, rank: Rank, forgotten: Iterable[Task], since: int) -> None:
        """However the job has ended: nothing half written is left, nor what hosts were shown."""
        if rank.number == 0:
            rank.own(Outgoing).close()
        if rank.number in rank.leaders:
            rank.own(Stream).close()
        rank.own(HostDirectory).close()


BROADCAST = Broadcast()


class BroadcastPreparation(SummedPreparation):
    program, stopped = "pbcast", "the same command sends all again"

    def __init__(self, arguments: BroadcastArguments) -> None:
        """Raises ``Refused``; nothing is touched."""
        super().__init__(0 if is_launched(os.environ) else 1, 1, arguments.telling, dry_run=arguments.dry_run)
        self.incomplete = f"not every host {'can take' if self.dry_run else 'has'} all files"
        self.arguments = arguments
        looked_at = [_checked(path) for path in arguments.files]
        self._files = tuple(path for path, _ in looked_at)
        _refuse_equal_names(self._files)
        self._directory = _target(arguments.directory)
        for given, (path, status) in zip(arguments.files, looked_at, strict=True):
            _refuse_over_link(given, os.path.join(self._directory, os.path.basename(path)), status)
        sent = {os.path.basename(path): (status.st_dev, status.st_ino) for path, status in looked_at}
        refuse_replacing(self.telling, sent, self._directory)
        check_told(self.telling, (), "is sent")
        self._size = sum(status.st_size for _, status in looked_at)
        self._needed = sum(min(status.st_size, status.st_blocks * 512) for _, status in looked_at)
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
        tell("pbcast", "the same command sends all files again")

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
    return totals.bytes / seconds if seconds > 0 else 0.0


def _checked(path: bytes) -> tuple[bytes, os.stat_result]:
    """A regular file that can be read, from the root, and its status; raises ``Refused``."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise unlookable(path, error) from None
    if stat.S_ISDIR(status.st_mode):
        advice = f"pack it (ptar -c -f FILE.tar {for_shell(path)}), or copy it with pcopy to where all hosts see it"
        raise Refused(f"{shown(path)}: is a directory, and pbcast sends files: {advice}")
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"{shown(path)}: is no regular file; put what it holds into a file")
    if not os.access(path, os.R_OK):
        raise Refused(f"{shown(path)}: may not be read; check its mode")
    return absolute(path), status


def _refuse_equal_names(files: Sequence[bytes]) -> None:
    names: dict[bytes, bytes] = {}
    for path in files:
        name = os.path.basename(path)
        other = names.get(name)
        if other == path:
            raise Refused(f"{shown(path)}: is named twice")
        if other is not None:
            raise Refused(f"{shown(other)} and {shown(path)} would get the same name; send them to two directories")
        names[name] = path


def _refuse_over_link(given: bytes, target: bytes, status: os.stat_result) -> None:
    """The link that leads to what is sent would be replaced by a copy; cp(1) says that both are the same file."""
    with suppress(OSError):
        if os.path.islink(target) and os.path.samestat(os.stat(target), status):
            raise Refused(
                f"{shown(target)}: is a symbolic link to {shown(given)}; remove it, or name another directory"
            )


def _target(path: bytes) -> bytes:
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        raise Refused(f"{unlookable(path, error)}; the last word names a directory that each host has") from None
    if not is_directory:
        raise Refused(f"{shown(path)}: is no directory; the last word names one that each host has")
    return absolute(path)
