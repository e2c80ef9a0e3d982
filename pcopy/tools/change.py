"""``pchmod``: change mode, owner, group or ACL of trees. All ranks load this module; rank 0 checks the paths and
reports the result.
"""

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
"""Counters of ``Totals`` that ``--json`` shows."""


class ChangeDirector(LevelsDirector):
    """Director of ``pchmod``."""

    def first_task(self, place: Place, item: bytes) -> Kind:
        return ChangeNames(place, item)


class Chmod(RepeatableTool):
    """The program ``pchmod``.

    In its counters, ``copied`` counts all items that are as requested, and ``mended`` those of them that were changed.
    """

    name = "pchmod"
    writes = False  # It creates no names: no probe file has to show that all hosts see the same target.
    stages = one_stage("change")
    done = "as requested"
    director = ChangeDirector
    visitor = staticmethod(ChangeVisitor)

    def phase_name(self, phase: int) -> str:
        return "change"


CHMOD = Chmod()
"""The only instance of ``Chmod``."""


class ChangePreparation(TreePreparation):
    """The job of ``pchmod`` on rank 0."""

    program, done, incomplete = "pchmod", "changed", "not all items are as requested"

    def __init__(self, arguments: ChangeArguments) -> None:
        """Check the paths and prepare the job. Raise ``Refused`` if one must not be changed; nothing is modified."""
        super().__init__(arguments.tree)
        is_listed = bool(self.tree.listing)
        roots = self.listed() if is_listed else self.roots(lambda path: _root(path, arguments))
        self.make_job(roots, copies=False, change=arguments.change, umask=umask_of_user())

    def is_listed(self, items: Itemized) -> bool:
        return items.action == Action.META

    def tell_how_to_go_on(self) -> None:
        tell("pchmod", "repeat the command to continue: items that are as requested remain unchanged")

    def lines(self, ended: Ended, seconds: float, ranks: int) -> Iterator[str]:
        totals = ended.totals
        changed = "would be changed" if self.dry_run else "changed"
        yield from sums_lines(totals, "as requested", "excluded")
        yield f"  {totals.mended:,} {changed}, {totals.copied - totals.mended:,} unchanged"
        yield pace_line(totals, seconds, ranks)

    def summary(self, ended: Ended, seconds: float, ranks: int) -> dict[str, object]:
        totals = ended.totals
        values = summary_values(totals, _COUNTED, seconds, ranks, ended.status)
        unchanged = totals.copied - totals.mended
        return {**values, "changed": totals.mended, "unchanged": unchanged, "dry_run": self.dry_run}


def _root(path: bytes, arguments: ChangeArguments) -> Root:
    """Return the root for one PATH: the item in its parent directory.

    A symbolic link is followed unless only its owner is to be changed. Raise ``Refused`` if PATH must not be changed,
    and ``OSError`` if it does not exist.
    """
    stripped = path.rstrip(b"/") or b"/"
    status = os.lstat(stripped)
    if stat.S_ISLNK(status.st_mode) and not (path == stripped and arguments.is_owner_alone):
        if path == stripped and arguments.names_owner:
            text = "is a symbolic link; --owner and --group change the link, and MODE its target: write two commands"
            raise Refused(f"{shown(path)}: {text}")
        stripped = os.path.realpath(stripped)
        status = os.stat(stripped)
    if os.path.samestat(status, os.stat("/")):
        raise Refused(f"{shown(path)}: is the root directory, which is never changed; name what is in it")
    if path.endswith(b"/") and not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    parent, name = os.path.split(stripped)
    if name in (b"", b".", b".."):
        parent, name = stripped, b"."
    directory = os.path.realpath(parent or b".")
    parent_status = os.stat(directory)
    identity = parent_status.st_dev, parent_status.st_ino
    return Root(directory, directory, name, name, path, path, identity, identity)
