"""``pchmod`` as a tool, which each rank knows; on rank 0: what is changed, what is refused, what is told at the end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from pcopy.errors import Refused
from pcopy.launch.tool import Ended
from pcopy.report.streams import tell
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.itemized import Itemized
from pcopy.tasks.base.job import Root
from pcopy.tasks.base.kind import Kind
from pcopy.tasks.base.values import Place
from pcopy.tasks.change.change_tree import ChangeNames
from pcopy.tasks.change.visitor import ChangeVisitor
from pcopy.text import shown
from pcopy.tools.arguments import ChangeArguments
from pcopy.tools.director import LevelsDirector, RepeatableTool, one_stage
from pcopy.tools.outputs import umask_of_user
from pcopy.tools.summary import pace_line, summary_values, sums_lines
from pcopy.tools.trees import TreePreparation

_COUNTED = ("found", "files", "directories", "symlinks", "special", "bytes", "excluded", "failed")
"""Counters that ``--json`` shows, by their names in ``Totals``."""


class ChangeDirector(LevelsDirector):
    def first_task(self, place: Place, item: bytes) -> Kind:
        return ChangeNames(place, item)


class Chmod(RepeatableTool):
    """Items that are as they should be are counted where a copy counts what it has copied, and as mended those that
    were changed for it."""

    name = "pchmod"
    writes = False  # no names are made
    stages = one_stage("change")
    done = "as it should be"
    director = ChangeDirector
    visitor = staticmethod(ChangeVisitor)

    def phase_name(self, phase: int) -> str:
        return "change"


CHMOD = Chmod()


class ChangePreparation(TreePreparation):
    program, done, incomplete = "pchmod", "changed", "not everything is as it should be"

    def __init__(self, arguments: ChangeArguments) -> None:
        """Raises ``Refused``; nothing is touched."""
        super().__init__(arguments.tree)
        is_listed = bool(self.tree.listing)
        roots = self.listed() if is_listed else self.roots(lambda path: _root(path, arguments))
        self.make_job(roots, copies=False, change=arguments.change, umask=umask_of_user())

    def is_listed(self, items: Itemized) -> bool:
        return items.action == Action.META

    def tell_how_to_go_on(self) -> None:
        tell("pchmod", "the same command goes on: what is as it should be is left alone")

    def lines(self, ended: Ended, seconds: float, ranks: int) -> Iterator[str]:
        totals = ended.totals
        changed = "would be changed" if self.dry_run else "changed"
        yield from sums_lines(totals, "as wanted", "excluded")
        yield f"  {totals.mended:,} {changed}, {totals.copied - totals.mended:,} unchanged"
        yield pace_line(totals, seconds, ranks)

    def summary(self, ended: Ended, seconds: float, ranks: int) -> dict[str, object]:
        totals = ended.totals
        values = summary_values(totals, _COUNTED, seconds, ranks, ended.status)
        unchanged = totals.copied - totals.mended
        return {**values, "changed": totals.mended, "unchanged": unchanged, "dry_run": self.dry_run}


def _root(path: bytes, arguments: ChangeArguments) -> Root:
    """``path`` in its directory; raises ``Refused``, and ``OSError`` if it is not there."""
    bare = path.rstrip(b"/") or b"/"
    status = os.lstat(bare)
    if stat.S_ISLNK(status.st_mode) and not (path == bare and arguments.is_owner_alone):
        if path == bare and arguments.names_owner:
            text = "is a symbolic link; --owner and --group change the link, and MODE its target: write two commands"
            raise Refused(f"{shown(path)}: {text}")
        bare = os.path.realpath(bare)
        status = os.stat(bare)
    if os.path.samestat(status, os.stat("/")):
        raise Refused(f"{shown(path)}: is the root directory, which is never changed; name what is in it")
    if path.endswith(b"/") and not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    parent, name = os.path.split(bare)
    if name in (b"", b".", b".."):
        parent, name = bare, b"."
    directory = os.path.realpath(parent or b".")
    above = os.stat(directory)
    identity = above.st_dev, above.st_ino
    return Root(directory, directory, name, name, path, path, identity, identity)
