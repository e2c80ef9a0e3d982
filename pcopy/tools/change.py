"""``pchmod``: change mode, owner, group or ACL of trees. All ranks load this module; rank 0 checks the paths and
reports the result.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from pcopy.errors import path_refused
from pcopy.launch.tool import JobResult
from pcopy.report.streams import print_error
from pcopy.tasks.base.job import ChangeOptions, Root
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.base.values import Place
from pcopy.tasks.change.change_tree import ChangeMetadataOfItems
from pcopy.tasks.change.visitor import MetadataChangeVisitor
from pcopy.tools.arguments import ChmodArguments
from pcopy.tools.director import BottomUpDirector, UnrecordedJobTool, stages_of_single_walk
from pcopy.tools.outputs import umask_of_user
from pcopy.tools.summary import common_json_values, item_counts_lines, items_per_second_line
from pcopy.tools.trees import TreeJob

_SHOWN_COUNTERS = ("found", "files", "directories", "symlinks", "special", "bytes", "excluded", "failed")
"""Names of the counters (fields of ``JobCounters``) that ``--json`` shows."""


class ChmodDirector(BottomUpDirector):
    """Director of ``pchmod``: the object on rank 0 that chooses the phases of the job and their first tasks."""

    def task_for_item(self, place: Place, item: bytes) -> TaskKind:
        return ChangeMetadataOfItems(place, item)


class ChmodTool(UnrecordedJobTool):
    """The program ``pchmod``.

    In its counters (``JobCounters``), ``copied`` counts all items that have the requested mode, owner, group and ACL at
    the end, and ``mended`` those among them that this job has changed.
    """

    name = "pchmod"
    writes_to_targets = False  # It creates no names: no probe file has to show that all hosts see the same target.
    stages = stages_of_single_walk("change")
    done_word = "as it should be"
    make_director = ChmodDirector
    make_visitor = staticmethod(MetadataChangeVisitor)

    def phase_name(self, phase: int) -> str:
        return "change"


CHANGE_TOOL = ChmodTool()
"""The only instance of ``ChmodTool``."""


class ChmodJob(TreeJob):
    """The job of ``pchmod`` on rank 0: checks the paths, and prints the totals."""

    program, item_verb, incomplete_text = "pchmod", "changed", "not all items are as requested"

    def __init__(self, arguments: ChmodArguments) -> None:
        """Check the paths and prepare the job; nothing is modified. Raise ``RequestRefused`` if a path must not be
        changed.
        """
        super().__init__(arguments.tree)
        is_listed = bool(self.tree.list_file)
        roots = (
            self.read_path_list() if is_listed else self.existing_roots(lambda path: _root_for_path(path, arguments))
        )
        self.make_job_for_roots(roots, copies=False, program=ChangeOptions(arguments.change), umask=umask_of_user())

    def print_resume_advice(self) -> None:
        print_error("pchmod", "repeat the command to continue: items that are as requested remain unchanged")

    def summary_lines(self, ended: JobResult, seconds: float, ranks: int) -> Iterator[str]:
        totals = ended.totals
        changed = "would be changed" if self.dry_run else "changed"
        yield from item_counts_lines(totals, "as requested", "excluded")
        yield f"  {totals.mended:,} {changed}, {totals.copied - totals.mended:,} unchanged"
        yield items_per_second_line(totals, seconds, ranks)

    def json_summary(self, ended: JobResult, seconds: float, ranks: int) -> dict[str, object]:
        totals = ended.totals
        values = common_json_values(totals, _SHOWN_COUNTERS, seconds, ranks, ended.status)
        unchanged = totals.copied - totals.mended
        return {**values, "changed": totals.mended, "unchanged": unchanged, "dry_run": self.dry_run}


def _root_for_path(path: bytes, arguments: ChmodArguments) -> Root:
    """Return the root (source and target, here the same) for one PATH: its parent directory, and its name there.

    If PATH is a symbolic link, its target is changed; but if only owner or group are to be changed and PATH has no
    trailing slash, the link itself is. Raise ``RequestRefused`` if PATH must not be changed, and ``OSError`` if it does
    not exist.
    """
    stripped = path.rstrip(b"/") or b"/"
    status = os.lstat(stripped)
    if stat.S_ISLNK(status.st_mode) and not (path == stripped and arguments.changes_only_owner):
        if path == stripped and arguments.changes_owner:
            text = "is a symbolic link; --owner and --group change the link, and MODE its target: write two commands"
            raise path_refused(path, text)
        stripped = os.path.realpath(stripped)
        status = os.stat(stripped)
    if os.path.samestat(status, os.stat("/")):
        raise path_refused(path, "is the root directory, which is never changed; name what is in it")
    if path.endswith(b"/") and not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    parent, name = os.path.split(stripped)
    if name in (b"", b".", b".."):
        parent, name = stripped, b"."
    directory = os.path.realpath(parent or b".")
    parent_status = os.stat(directory)
    identity = parent_status.st_dev, parent_status.st_ino
    return Root(directory, directory, name, name, path, path, identity, identity)
