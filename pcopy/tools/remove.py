"""``prm`` as a tool, which each rank knows; on rank 0: what is removed, what is refused, what is told at the end."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pcopy.engine.task import Spawn
from pcopy.errors import INCOMPLETE, INTERNAL, OK, STOPPED, Refused
from pcopy.fsio.identity import Identity
from pcopy.jobs.meant import meant
from pcopy.jobs.spool import SET_ANOTHER
from pcopy.launch.tool import Ended, Preparation, Tool
from pcopy.launch.watch.signals import told
from pcopy.report.gauge import Done, Stage, Stages
from pcopy.report.streams import tell
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.job import Failure, Job, Options, Root, Sink, Totals, mount_codes
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.tasks.remove.remove_tree import NOBODY, RemoveNames
from pcopy.text import counted, for_shell, shown
from pcopy.tools.arguments import RemoveArguments
from pcopy.tools.director import RepeatableDirector
from pcopy.tools.outputs import check_told
from pcopy.tools.summary import summary_values, sums_lines
from pcopy.units import show_seconds

_NAMED = 5
"""Paths that the question names."""

_COUNTED = ("found", "files", "directories", "symlinks", "special", "bytes", "failed")
"""Counters that ``--json`` shows, by their names in ``Totals``; those with other names come besides."""

_OUTCOMES = {
    INCOMPLETE: "incomplete: not everything is removed (status 1)",
    INTERNAL: "internal error (status 70)",
    STOPPED: "stopped early (status 75): the same command goes on",
}


def _removed(totals: Totals) -> Done:
    items = totals.copied + totals.skipped + totals.failed
    handled = totals.bytes + totals.failed_bytes
    return Done(items, totals.found, handled, totals.found_bytes, totals.bytes, totals.unscanned == 0)


STAGES: Stages = {"remove": Stage(_removed, scans=True)}


class RemoveDirector(RepeatableDirector):
    """One phase, which begins with the paths."""

    def _root_task(self, number: int) -> Spawn:
        root = self._job.roots[number]
        identity = Identity(mount_codes(self._job.roots)[number][0], root.source_id[1])
        place = Place(number, b"", identity, NOWHERE, False, False)
        return Spawn(0, encode(RemoveNames(place, NOBODY, root.item)), SCAN_COST, True)


def _not_there(path: bytes, error: OSError) -> Failure:
    advice = meant(path) if error.errno == errno.ENOENT else ""
    return Failure(path, "stat", error.errno or errno.EIO, advice)


class Removal(Tool):
    """What has been removed is counted where a copy counts what it has copied, and as
    skipped the directories that stay because something in them does."""

    name = "prm"
    writes = False  # no names are made
    unfinished = STOPPED
    spool_advice = SET_ANOTHER
    stages = STAGES
    done = "removed"
    durable_before: tuple[int, ...] = ()
    director = RemoveDirector

    def phase_name(self, phase: int) -> str:
        return "remove"


REMOVAL = Removal()


class RemovePreparation(Preparation):
    def __init__(self, arguments: RemoveArguments) -> None:
        """Asks, if it has to; raises ``Refused``."""
        self.arguments = arguments
        super().__init__(arguments.ranks, arguments.in_flight, arguments.telling)
        self._missing: list[Failure] = []
        roots = tuple(self._roots())
        check_told(self.telling, roots, "is removed")
        options = Options(
            max_errors=arguments.max_errors,
            termination=arguments.termination,
            sync=False,
            one_file_system=True,
            dry_run=arguments.dry_run,
            select=arguments.select,
            oplimit=arguments.oplimit,
        )
        self.job = Job(os.urandom(5).hex(), 1, roots, options)
        if roots and not arguments.yes and not arguments.dry_run:
            _ask(roots)
        self.began = time.monotonic()

    def _roots(self) -> Iterator[Root]:
        """Each path once. What is not there is noted."""
        around = _directories_around_us()
        known = set()
        for path in self.arguments.paths:
            try:
                root = _root(path, around)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR) or not self.arguments.missing_is_fine:
                    self._missing.append(_not_there(path, error))
                continue
            if (root.source_id, root.item) not in known:
                known.add((root.source_id, root.item))
                yield root

    def tell_how_to_go_on(self) -> None:
        tell("prm", "what is there yet is removed by the same command")

    def sink(self, screen: Sink) -> Sink:
        """It is told of the paths that are not there."""
        if self._missing:
            screen.failures(self._missing)
        return super().sink(screen)

    def settle(self, rank: Rank, totals: Totals) -> int:
        return INCOMPLETE if self._missing else OK

    def tell_end(self, ended: Ended, ranks: int) -> int:
        seconds = time.monotonic() - self.began
        missing = len(self._missing)
        totals = ended.totals._replace(found=ended.totals.found + missing, failed=ended.totals.failed + missing)
        if ended.halted is not None:
            tell("prm", told(ended.halted))
        self.values = self.summary(totals, seconds, ranks, ended.status)
        if self.telling.json:
            print(json.dumps(self.values), flush=True)
        elif not self.telling.quiet or ended.status != OK or self.arguments.dry_run:
            print("\n".join(self._lines(totals, seconds, ranks, ended.status)), flush=True)
        return ended.status

    def _lines(self, totals: Totals, seconds: float, ranks: int, status: int) -> list[str]:
        removed = "would be removed" if self.arguments.dry_run else "removed"
        lines = sums_lines(totals, removed, "left" if self.job.options.select.anything else "not empty")
        rate = totals.copied / seconds if seconds > 0 else 0.0
        lines.append(f"{show_seconds(seconds)}: {rate:,.0f} items/s with {counted(ranks, 'rank', 'ranks')}")
        return lines if status == OK else [*lines, _OUTCOMES.get(status, f"ended with status {status}")]

    def summary(self, totals: Totals, seconds: float, ranks: int, status: int) -> dict[str, object]:
        removed = {"removed": totals.copied, "not_empty": totals.skipped, "dry_run": self.arguments.dry_run}
        return {**summary_values(totals, _COUNTED, seconds, ranks, status), **removed}


def _directories_around_us() -> dict[tuple[int, int], str]:
    """The working directory, all above it, and ``/``: what each of them is called."""
    found: dict[tuple[int, int], str] = {}
    path, called = b".", "the working directory"
    with suppress(OSError):  # the working directory was removed
        while (identity := _identity(os.stat(path))) not in found:
            found[identity] = called
            path, called = path + b"/..", "a directory above the working directory"
    found[_identity(os.stat(b"/"))] = "the root directory"
    return found


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _root(path: bytes, around: dict[tuple[int, int], str]) -> Root:
    """``path`` in its directory; raises ``Refused`` for what is never removed, and ``OSError`` if it is not there."""
    bare = path.rstrip(b"/")
    if not bare:
        raise Refused(f"{shown(path)}: is the root directory, which is never removed")
    parent, name = os.path.split(bare)
    if name in (b".", b".."):
        raise Refused(f"{shown(path)}: {name.decode()} is never removed; name the directory")
    status = os.lstat(bare)
    if path != bare and not stat.S_ISDIR(status.st_mode):
        if stat.S_ISLNK(status.st_mode):
            raise Refused(f"{shown(path)}: is a symbolic link; to remove that, leave out the slash: {for_shell(bare)}")
        raise Refused(f"{shown(path)}: is no directory; to remove it, leave out the slash: {for_shell(bare)}")
    directory = os.path.realpath(parent or b".")
    above = os.stat(directory)
    if stat.S_ISDIR(status.st_mode):
        if called := around.get(_identity(status)):
            raise Refused(f"{shown(path)}: is {called}, which is never removed")
        if status.st_dev != above.st_dev:
            what = "another file system is mounted there, or it is a subvolume; unmount or delete that"
            raise Refused(f"{shown(path)}: {what}, or name what is in it")
    return Root(directory, directory, name, name, bare, bare, _identity(above), _identity(above))


def _ask(roots: Sequence[Root]) -> None:
    """Raises ``Refused`` unless the user says yes."""
    if not sys.stdin.isatty():
        raise Refused("nobody can be asked, since standard input is no terminal; --yes removes without a question")
    names = ", ".join(shown(root.source_shown) for root in roots[:_NAMED])
    more = f" and {len(roots) - _NAMED:,} more" if len(roots) > _NAMED else ""
    sys.stderr.write(f"prm: remove {names}{more}, and all that is in {'it' if len(roots) == 1 else 'them'}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("nothing was removed")
