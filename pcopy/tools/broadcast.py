"""``pbcast`` as a tool, which each rank knows; on rank 0: which files are sent, and what is told at the end."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from pcopy.engine.task import Spawn, Task
from pcopy.errors import OK, Refused
from pcopy.jobs.paths import absolute, unlookable
from pcopy.launch.launcher import is_launched
from pcopy.launch.tool import Ended
from pcopy.report.gauge import Done, Stage, Stages
from pcopy.report.streams import tell
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.job import InFront, Job, Options, Sink, Totals
from pcopy.tasks.base.kind import Kind
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.broadcast.directory import CheckDirectory, HostDirectory, LookAround, OpenTarget, SyncTarget
from pcopy.tasks.broadcast.send import Send, Stream
from pcopy.text import counted, for_shell, shown
from pcopy.tools.arguments import BroadcastArguments
from pcopy.tools.director import RepeatableDirector, RepeatableTool
from pcopy.tools.ending import SummedPreparation
from pcopy.tools.outputs import check_told
from pcopy.tools.summary import summary_values
from pcopy.units import show_seconds, show_size

OPEN, LOOK, SEND, SYNC = range(4)
"""The phases."""

_COUNTED = ("found", "files", "bytes", "skipped", "failed", "excused")
"""Counters that ``--json`` shows, by their names in ``Totals``: of all hosts together."""


def _sent(totals: Totals) -> Done:
    items = totals.files + totals.skipped + totals.failed
    handled = totals.moved + totals.skipped_bytes + totals.failed_bytes
    return Done(items, totals.found, handled, totals.found_bytes, totals.moved, False)


STAGES: Stages = {"send": Stage(_sent)}


class ToSend(InFront):
    """On rank 0: what the director has to know."""

    def __init__(self, screen: Sink, files: tuple[bytes, ...], directory: bytes, size: int) -> None:
        super().__init__(screen)
        self.files = files
        self.directory = directory
        self.size = size
        """Of all files together, in bytes."""


class BroadcastDirector(RepeatableDirector):
    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        rank = self._rank
        wanted = rank.sink
        assert isinstance(wanted, ToSend)
        owners: Sequence[int] = range(rank.size)
        task: Kind = LookAround()
        if self._job.options.dry_run:
            owners, task = rank.leaders, CheckDirectory(wanted.directory, wanted.size)
        elif phase == OPEN:
            task = OpenTarget(wanted.directory)
        elif phase == SEND:
            owners, task = (0,), Send(wanted.files)
        elif phase == SYNC:
            owners, task = rank.leaders, SyncTarget()
        return [Spawn(phase, encode(task), 0, owner=owner) for owner in owners]

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
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
        self._files = tuple(map(_checked, arguments.files))
        _refuse_equal_names(self._files)
        self._directory = _target(arguments.directory)
        check_told(self.telling, (), "is sent")
        self._size = sum(os.stat(path).st_size for path in self._files)
        options = Options(
            termination=arguments.termination, sync=arguments.sync, fsync=arguments.fsync, dry_run=arguments.dry_run
        )
        self.job = Job(os.urandom(5).hex(), 1, (), options)

    def sink(self, screen: Sink) -> Sink:
        return ToSend(screen, self._files, self._directory, self._size)

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
            yield f"{sources} of {show_size(self._size)} would be sent to {hosts}: {totals.failed:,} cannot take them"
            return
        yield f"{sources} to each host: {totals.found:,} begun = {' + '.join(sums)}"
        rate, ways = show_size(_rate(totals, seconds)), counted(ranks, "rank", "ranks")
        written = f"{show_size(totals.bytes)} written in {show_seconds(seconds)}"
        yield f"{written}: {rate}/s on all hosts together, with {ways}"


def _rate(totals: Totals, seconds: float) -> float:
    return totals.bytes / seconds if seconds > 0 else 0.0


def _checked(path: bytes) -> bytes:
    """A regular file that can be read, from the root; raises ``Refused``."""
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
    return absolute(path)


def _refuse_equal_names(files: Sequence[bytes]) -> None:
    names: dict[bytes, bytes] = {}
    for path in files:
        other = names.setdefault(os.path.basename(path), path)
        if other != path:
            raise Refused(f"{shown(other)} and {shown(path)} would get the same name; send them to two directories")
        if files.count(path) > 1:
            raise Refused(f"{shown(path)}: is named twice")


def _target(path: bytes) -> bytes:
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        raise unlookable(path, error) from None
    if not is_directory:
        raise Refused(f"{shown(path)}: is no directory; the last word names one that each host has")
    return absolute(path)
