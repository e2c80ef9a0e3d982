"""Decides which directories the backend may process in batches (``pcopy.fsio.kernel.directory_batches``)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pcopy.fsio.kernel.batches import Plan
from pcopy.fsio.kernel.decide import Policy, make_plan
from pcopy.fsio.kernel.directory_batches import NEVER, Common
from pcopy.fsio.problem import Problem
from pcopy.tasks.base.dividing import Paces
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.tasks.directories.scan_dir import IN_PLACE, ScanNames
from pcopy.tasks.files.deciding import policy_of
from pcopy.tasks.files.layouts import layout_at
from pcopy.walk.listing import NAMES_AT_ONCE


def open_plain(rank: Rank, place: Place, names: Sequence[bytes]) -> int | None:
    """Return the target descriptor of ``place`` if the backend may process its sub-directories ``names`` in a batch;
    else None.

    None means that they must be processed one by one (the slow path).
    """
    if not _are_plain(rank, place, names):
        return None
    try:
        target = rank.open_target(place)
        if not layout_at(rank, place).is_plain:
            return None
    except Problem:  # the slow path reports it for each directory
        return None
    return None if rank.storage is not None and rank.storage.one_by_one else target


def _are_plain(rank: Rank, place: Place, names: Sequence[bytes]) -> bool:
    """Return True if nothing that is known before the directories are opened requires the slow path."""
    job, options = rank.job, rank.options
    if not (rank.kernel.enters and job.copies and job.run == 1) or place.target_id == NOWHERE:
        return False  # items that an earlier run created need the slow path
    if (
        rank.signs
        or options.verify
        or options.itemize
        or rank.gathers
        or options.dereference
        or options.recodes
        or options.preserve.chown != (-1, -1)
    ):
        return False
    if job.roots[place.root].item:
        return False
    sides = (
        (rank.sources[place.root].mounted, place.path),
        (rank.targets[place.root].mounted, rank.below_target(place.root, place.path)),
    )
    return not any(side.concerns(os.path.join(path, name)) for side, path in sides if side.any for name in names)


def in_common(rank: Rank, place: Place) -> Common:
    """Return the parameters that all sub-directories of ``place`` share in a batch; ``place`` is open on both sides."""
    policy, selects = policy_of(rank, place), rank.own(Selected).anything
    targets = rank.targets[place.root]
    is_quick = rank.kernel.works_here or rank.own(Paces).are_quick(ScanNames.code, NAMES_AT_ONCE)
    excluded = 0, 0
    try:
        top = targets.identity(rank.below_target(place.root, b""))
        excluded = targets.mounts.device(top.mount) or 0, top.inode
    except Problem:
        pass  # the target of the root does not exist yet
    return Common(
        *rank.devices(place),
        excluded,
        NEVER if policy.touched is None else policy.touched,
        policy.modify_window,
        NAMES_AT_ONCE - 1 if is_quick else IN_PLACE,
        in_new=place.fresh,
        compares=policy.existing == "changed" and not (policy.contents or policy.in_place or selects),
        links_apart=rank.options.preserve.links,
        copies=not selects and _copies_at_once(rank, place, policy),
    )


def _copies_at_once(rank: Rank, place: Place, policy: Policy) -> bool:
    """Return True if the batch may copy the small files of a new directory right after it creates the directory.

    Such files never become tasks, which other ranks could steal; so this is done only while other ranks have enough
    work.
    """
    are_new = make_plan(policy) == Plan.NEW and not rank.digests and rank.options.reflink != "always"
    return are_new and rank.kernel.works_here and rank.has_plenty()
