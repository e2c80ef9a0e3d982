"""Names that a copy job never deletes, even if the source lacks them: temporary files of pcopy jobs, and items that the
options spare by name.

Patterns, sizes and ages also protect items from deletion; ``RemoveVisitor`` checks those.
"""

from __future__ import annotations

import os
import re
from array import array

from pcopy.fsio.backend.batches import ListNamesResult
from pcopy.fsio.backend.columns import pack_names, unpack_names
from pcopy.fsio.incomplete_mark import SIDECAR_NAME_PREFIX
from pcopy.fsio.temporary import TEMPORARY_NAME_PREFIX
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place

_JOB_FILE_NAME = re.compile(
    rb"%b(?:[0-9a-f]+-\d+-\d+\.\d+|[0-9a-f]+-exchanged-\d+-[0-9a-f]{8}|%b[0-9a-f]+)"
    % (re.escape(TEMPORARY_NAME_PREFIX), re.escape(SIDECAR_NAME_PREFIX[len(TEMPORARY_NAME_PREFIX) :]))
)
"""Matches the names of temporary files (``pcopy.fsio.temporary``), and of the files that mark another file as
incomplete (``pcopy.fsio.incomplete_mark``).
"""

_JOB_FILE_WARNING = "not deleted: it is a temporary file of a pcopy job, which may still run"
"""Warning about an extra item in the target whose name matches ``_JOB_FILE_NAME``."""


def may_name_be_deleted(rank: Rank, place: Place, name: bytes) -> bool:
    """Return True if ``name`` in the target directory ``place`` may be deleted: it is neither a temporary file of any
    job nor spared by the options.
    """
    if name.startswith(TEMPORARY_NAME_PREFIX) and _JOB_FILE_NAME.fullmatch(name):
        return False
    return not rank.job.spared or (place.root, os.path.join(place.path, name)) not in rank.job.spared


def listing_without_protected_names(
    rank: Rank, result: TaskResult, place: Place, listed: ListNamesResult
) -> ListNamesResult:
    """Return the listing ``listed`` without the names that must not be deleted from the target directory ``place``. If
    all may be deleted, return ``listed`` itself. Warn about each temporary file of a job that stays.
    """
    packed = listed.names
    if b"/" + TEMPORARY_NAME_PREFIX not in b"/" + packed and not rank.job.spared:
        return listed
    names = unpack_names(packed, len(packed))
    rows = [row for row, name in enumerate(names) if may_name_be_deleted(rank, place, name)]
    if len(rows) == len(names):
        return listed
    for name in {*names}.difference(names[row] for row in rows):
        if name.startswith(TEMPORARY_NAME_PREFIX):
            result.warn_once(place, name, _JOB_FILE_WARNING)
    kinds = bytes(listed.kinds[row] for row in rows) if listed.kinds else b""
    inodes = array("Q", [listed.inodes[row] for row in rows]) if listed.inodes else listed.inodes
    return ListNamesResult(listed.verdicts, pack_names(names[row] for row in rows), len(rows), kinds, inodes)
