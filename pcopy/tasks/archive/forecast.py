"""The forecast of ``ptar --dry-run``: counts what would be archived or extracted.

Nothing is created, and no contents are read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from pcopy.archive.member import FILE, HARD_LINK_MEMBER, ArchiveMember, safe_member_path
from pcopy.fsio.problem import Problem
from pcopy.signature.items import FILE as FILE_TYPE
from pcopy.signature.items import type_byte
from pcopy.tasks.archive.descriptions import unpack_item_to_archive
from pcopy.tasks.archive.members_to_extract import MemberToExtract, directory_place_in_target
from pcopy.tasks.archive.names import ConflictingNames, link_problem_text
from pcopy.tasks.archive.piece_writer import PieceAtOffset, PieceMemberReader
from pcopy.tasks.archive.replaced_items import action_for_existing_name
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import HARD_LINK_TYPE_BYTE
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult


def preview_archived_members(writer: PieceMemberReader, pieces: Iterable[PieceAtOffset]) -> None:
    """For a dry run: count and report the members in ``pieces`` as if they had been archived; nothing is read or
    written. ``writer`` is the object whose methods count them.
    """
    for piece in pieces:
        for run in piece.runs:
            if not isinstance(run, bytes):
                writer.count_simple_files_written_earlier(run, [b""] * len(run))
                continue
            described = unpack_item_to_archive(run)
            if described.member.kind == FILE:
                writer.count_archived_file(described, b"")
            else:
                writer.count_member_without_contents(described)


def preview_extracted_members(rank: Rank, result: TaskResult, members: Iterable[MemberToExtract]) -> None:
    """For a dry run: count and report each of ``members`` as its extraction would be (copied, replaced or failed);
    nothing is created.
    """
    for each in members:
        member, place = each.member, directory_place_in_target(each.path)
        trouble = each.problem_text
        if (
            member.kind == HARD_LINK_MEMBER
            and (trouble := link_problem_text(each, rank.shared_instance(ConflictingNames)))
            and _has_existing_link_target(rank, member)
        ):
            trouble = ""
        if trouble:
            problem = Problem("extract", 0, text=trouble)
            result.count_item_as_failed(place, each.name, problem, member.size, retry=RetryMode.NEVER)
            continue
        kind = {FILE: FILE_TYPE, HARD_LINK_MEMBER: HARD_LINK_TYPE_BYTE}.get(member.kind) or type_byte(member.st_mode)
        result.count(counts.HARDLINKS if member.kind == HARD_LINK_MEMBER else counts.copied_counter(kind))
        if member.kind == FILE:
            result.count(counts.BYTES, member.size)
        action, differences = action_for_existing_name(rank, each)
        result.item_recorder.note_differences(place, each.name, differences)
        result.item_recorder.record_item_outcome(
            action, place, each.name, kind, member.size if member.kind == FILE else 0
        )


def _has_existing_link_target(rank: Rank, link: ArchiveMember) -> bool:
    """Return True if the item that the hard link ``link`` refers to exists in the target already, and is no
    directory.
    """
    directory, _, name = safe_member_path(link.link).rpartition(b"/")
    try:
        status = os.stat(name, dir_fd=rank.targets[0].open(directory), follow_symlinks=False)
    except (OSError, Problem):
        return False
    return not stat.S_ISDIR(status.st_mode)
