"""From a task's packed form to its running: which function runs which kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pcopy.engine.driver import Slices
from pcopy.engine.task import Task
from pcopy.tasks import values
from pcopy.tasks.context import Context, Result
from pcopy.tasks.copy_chunk import copy_chunk
from pcopy.tasks.copy_files import copy_files
from pcopy.tasks.copy_nodes import copy_nodes
from pcopy.tasks.finish_dir import finish_dir, seal_dir, seal_dirs
from pcopy.tasks.finish_file import finish_file
from pcopy.tasks.link_group import link_group, make_links
from pcopy.tasks.link_notes import group_links, link_note
from pcopy.tasks.open_files import chunk_done, file_opened
from pcopy.tasks.report_failures import report_failures
from pcopy.tasks.scan_dir import scan_dir
from pcopy.tasks.scan_names import scan_names
from pcopy.tasks.split_file import split_file
from pcopy.tasks.sync_files import sync_files

_RUNNERS: dict[type[Any], Callable[[Any, Context, Result], Slices]] = {
    values.ScanDir: scan_dir,
    values.ScanNames: scan_names,
    values.CopyFiles: copy_files,
    values.CopyNodes: copy_nodes,
    values.SplitFile: split_file,
    values.FileOpened: file_opened,
    values.CopyChunk: copy_chunk,
    values.ChunkDone: chunk_done,
    values.FinishFile: finish_file,
    values.LinkNote: link_note,
    values.GroupLinks: group_links,
    values.LinkGroup: link_group,
    values.MakeLinks: make_links,
    values.FinishDir: finish_dir,
    values.SealDir: seal_dir,
    values.SealDirs: seal_dirs,
    values.SyncFiles: sync_files,
    values.ReportFailures: report_failures,
}


class TaskRunner:
    """Runs tasks in one rank's context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __call__(self, task: Task) -> Slices:
        value = values.decode(task.payload)
        return _RUNNERS[type(value)](value, self._context, Result(self._context, task.phase))
