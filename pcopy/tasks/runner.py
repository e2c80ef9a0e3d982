"""From a task's packed form to its running: which function runs which kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pcopy.engine.driver import Slices
from pcopy.engine.task import ANYBODY, Task
from pcopy.tasks import read_values, sign_values, values
from pcopy.tasks.codec import decode
from pcopy.tasks.context import Context
from pcopy.tasks.copy_anew import copy_anew
from pcopy.tasks.copy_chunk import copy_chunk
from pcopy.tasks.copy_files import copy_files
from pcopy.tasks.copy_nodes import copy_nodes
from pcopy.tasks.digest_level import differences_note, digest_level, directories_note, signature_note
from pcopy.tasks.fail_dir import fail_dir
from pcopy.tasks.finish_dir import finish_dir, seal_dir, seal_dirs
from pcopy.tasks.finish_file import finish_file
from pcopy.tasks.link_group import link_group
from pcopy.tasks.link_notes import group_links, inode_copied, link_note
from pcopy.tasks.make_links import make_links
from pcopy.tasks.manifest_lines import lines_note, read_manifest, send_lines, write_manifest
from pcopy.tasks.name_items import name_group, name_items
from pcopy.tasks.open_files import chunk_done, file_opened
from pcopy.tasks.phases import Phase
from pcopy.tasks.read_back import verify_items, verify_links
from pcopy.tasks.read_items import read_items
from pcopy.tasks.report_failures import report_failures
from pcopy.tasks.result import Result
from pcopy.tasks.scan_dir import scan_dir
from pcopy.tasks.scan_names import scan_names
from pcopy.tasks.send_entries import deepest_note, entries_note, send_entries, stored_entries
from pcopy.tasks.split_file import split_file
from pcopy.tasks.split_read import chunk_read, read_chunk, read_opened, split_read
from pcopy.tasks.sync_files import sync_files
from pcopy.tasks.unmark import unmark
from pcopy.tasks.whereabouts import place_of

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
    values.Unmark: unmark,
    values.LinkNote: link_note,
    values.GroupLinks: group_links,
    values.LinkGroup: link_group,
    values.MakeLinks: make_links,
    values.InodeCopied: inode_copied,
    values.FinishDir: finish_dir,
    values.SealDir: seal_dir,
    values.SealDirs: seal_dirs,
    values.FailDir: fail_dir,
    values.SyncFiles: sync_files,
    values.NameItems: name_items,
    values.NameGroup: name_group,
    values.CopyAnew: copy_anew,
    values.ReportFailures: report_failures,
    read_values.ReadItems: read_items,
    read_values.VerifyItems: verify_items,
    read_values.VerifyLinks: verify_links,
    read_values.SplitRead: split_read,
    read_values.ReadOpened: read_opened,
    read_values.ReadChunk: read_chunk,
    read_values.ChunkRead: chunk_read,
    sign_values.StoredEntries: stored_entries,
    sign_values.SendEntries: send_entries,
    sign_values.EntriesNote: entries_note,
    sign_values.DeepestNote: deepest_note,
    sign_values.DigestLevel: digest_level,
    sign_values.DirectoriesNote: directories_note,
    sign_values.SignatureNote: signature_note,
    sign_values.DifferencesNote: differences_note,
    sign_values.WriteManifest: write_manifest,
    sign_values.SendLines: send_lines,
    sign_values.LinesNote: lines_note,
    sign_values.ReadManifest: read_manifest,
}

_LONG = (
    values.SyncFiles, read_values.ReadItems, read_values.VerifyItems, read_values.VerifyLinks, read_values.SplitRead,
    read_values.ReadChunk,
)  # fmt: skip
"""What may be addressed to a rank and is no note."""


def is_work(task: Task) -> bool:
    """May a job that stops leave ``task`` undone? The other tasks are notes, which are quick and told to one rank."""
    return task.owner == ANYBODY or isinstance(decode(task.payload), _LONG)


def _with_attempt(value: Any) -> Any:
    """What of a task knows which attempt it is."""
    if isinstance(value, values.FinishFile):
        return value.file.split
    return value.split if isinstance(value, values.NameGroup) else value


class TaskRunner:
    """Runs tasks in one rank's context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __call__(self, task: Task) -> Slices:
        self._context.begin(task.phase)
        value = decode(task.payload)
        result = Result(self._context, task.phase, task.id, place_of(value))
        result.attempt = getattr(_with_attempt(value), "attempt", 0)
        if task.phase >= Phase.SIGN:  # a job that is resumed signs from the beginning
            result.hold()
        return _RUNNERS[type(value)](value, self._context, result)
