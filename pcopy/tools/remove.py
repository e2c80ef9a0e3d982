"""``prm`` as a tool, which each rank knows; on rank 0: what is removed, what is refused, what is told at the end."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pcopy.errors import Refused
from pcopy.launch.tool import Ended
from pcopy.report.streams import tell
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.itemized import Itemized
from pcopy.tasks.base.job import DeviceInode, Root, Totals
from pcopy.tasks.base.kind import Kind
from pcopy.tasks.base.values import Place
from pcopy.tasks.remove.listed import ListedRemoval
from pcopy.tasks.remove.remove_tree import NOBODY, RemoveNames
from pcopy.text import counted, for_shell, shown
from pcopy.tools.arguments import RemoveArguments
from pcopy.tools.director import LevelsDirector, RepeatableTool, one_stage
from pcopy.tools.summary import origins_of, pace_line, summary_values, sums_lines
from pcopy.tools.trees import TreePreparation

if TYPE_CHECKING:
    from pcopy.jobs.listed import PathList

_NAMED = 5
"""Paths that the question names."""

_COUNTED = ("found", "files", "directories", "symlinks", "special", "bytes", "excluded", "failed")
"""Counters that ``--json`` shows, by their names in ``Totals``; those with other names come besides."""


class RemoveDirector(LevelsDirector):
    def first_task(self, place: Place, item: bytes) -> Kind:
        return RemoveNames(place, NOBODY, item)


class Removal(RepeatableTool):
    """What has been removed is counted where a copy counts what it has copied, and as
    skipped the directories that stay because something in them does."""

    name = "prm"
    writes = False  # no names are made
    stages = one_stage("remove")
    done = "removed"
    director = RemoveDirector
    visitor = staticmethod(ListedRemoval)

    def phase_name(self, phase: int) -> str:
        return "remove"


REMOVAL = Removal()


class RemovePreparation(TreePreparation):
    program, done, incomplete = "prm", "removed", "not everything is removed"
    names_filters = True

    def __init__(self, arguments: RemoveArguments) -> None:
        """Asks, if it has to; raises ``Refused``."""
        super().__init__(arguments.tree)
        around = _directories_around_us()
        missing_is_fine = arguments.missing_is_fine
        self.whole = arguments.whole
        kept: tuple[DeviceInode, ...] = ()
        if self.tree.listing:
            roots = self.listed(_check_listed(os.getcwdb()), whole=self.whole)
            kept = tuple(around)
        else:
            roots = self.roots(lambda path: _root(path, around), missing_is_fine=missing_is_fine)
        self.make_job(
            roots,
            copies=True,
            one_file_system=not self.tree.listing,
            missing_is_fine=missing_is_fine,
            never_removed=kept,
            whole_directories=self.whole,
        )
        if roots and not arguments.yes and not self.dry_run:
            part = "what the filters choose in " if self.tree.options.select.anything else ""
            _ask(_named(roots, part) if self.list is None else _listed(self.list, self.whole))
            self.began = time.monotonic()

    def is_listed(self, items: Itemized) -> bool:
        return items.action == Action.DELETE

    def tell_how_to_go_on(self) -> None:
        tell("prm", "what is there yet is removed by the same command")

    def lines(self, ended: Ended, seconds: float, ranks: int) -> Iterator[str]:
        removed = "would be removed" if self.dry_run else "removed"
        totals, select = ended.totals, self.tree.options.select
        yield from sums_lines(totals, removed, "left" if select.anything else "not empty")
        if select.anything and totals.skipped:
            excluded = f"{totals.excluded:,} excluded by filters ({origins_of(self.telling.filters)})"
            yield f"  left: {excluded}, {_not_empty(totals):,} not empty"
        if self.list is not None and not self.whole and self.dry_run and totals.directories:
            yield f"  {counted(totals.directories, 'directory', 'directories')} among them, if nothing else is in them"
        yield pace_line(totals, seconds, ranks)

    def summary(self, ended: Ended, seconds: float, ranks: int) -> dict[str, object]:
        totals = ended.totals
        removed = {"removed": totals.copied, "not_empty": _not_empty(totals), "dry_run": self.dry_run}
        return {**summary_values(totals, _COUNTED, seconds, ranks, ended.status), **removed}


def _not_empty(totals: Totals) -> int:
    """Directories that stay since something in them does."""
    return totals.skipped - totals.excluded


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


def _check_listed(here: bytes) -> Callable[[bytes], str]:
    """Refuses the working directory ``here``, and all above it."""

    def check(path: bytes) -> str:
        if path == here:
            return "is the working directory, which is never removed; leave it out (find -mindepth 1)"
        is_above = here.startswith(path + b"/")
        return "is a directory above the working directory, which is never removed" if is_above else ""

    return check


def _named(roots: Sequence[Root], part: str) -> str:
    """``part`` of them is to be removed, empty: all."""
    names = ", ".join(shown(root.source_shown) for root in roots[:_NAMED])
    more = f" and {len(roots) - _NAMED:,} more" if len(roots) > _NAMED else ""
    whole = "" if part else f", and all that is in {'it' if len(roots) == 1 else 'them'}"
    return f"{part}{names}{more}{whole}"


def _listed(paths: PathList, whole: bool) -> str:
    more = ", and all that is in directories among them" if whole else ""
    return f"{counted(paths.number, 'path', 'paths')} in {shown(paths.root.source_shown)} that --from lists{more}"


def _ask(what: str) -> None:
    """Raises ``Refused`` unless the user says yes."""
    if sys.stdin is None or not sys.stdin.isatty():  # None: it is closed
        raise Refused("nobody can be asked, since standard input is no terminal; --yes removes without a question")
    sys.stderr.write(f"prm: remove {what}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("nothing was removed")
