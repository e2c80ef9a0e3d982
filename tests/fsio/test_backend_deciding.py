"""Which plan is chosen for a file whose target name may exist, from the status of both items alone."""

from __future__ import annotations

import os
import stat
from array import array
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from pcopy.fsio.backend.batches import SYNC_FILE_FLAG, CopyPlan, StatNamesResult
from pcopy.fsio.backend.choose import create_backend
from pcopy.fsio.backend.columns import (
    EARLIEST_TIME,
    LATEST_TIME,
    OWNER_COLUMN,
    SCAN_COLUMNS,
    VERSION_COLUMNS,
    BatchOutcomeColumns,
    ItemStatusColumns,
    OutcomeCode,
)
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES, BackendSettings
from pcopy.fsio.backend.plan_copies import CopyPolicy, PlanCopiesBatch
from pcopy.fsio.existing import ExistingItemDecision, decision_for_existing_item
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import done

SECOND = 10**9
NOW = 1_700_000_000 * SECOND
THERE: dict[str, Any] = {"st_ctime_ns": NOW - 10 * SECOND}
ABSENT = 2
FILE = stat.S_IFREG | 0o644


def status(**fields: int) -> Any:
    """The status of a regular file of 100 bytes that belongs to another user and was modified some time ago."""
    base = {
        "st_mode": FILE, "st_uid": 4242, "st_gid": 4242, "st_size": 100, "st_ino": 7,
        "st_dev": 8, "st_rdev": 0, "st_mtime_ns": NOW - 100 * SECOND, "st_ctime_ns": NOW - 100 * SECOND,
    }  # fmt: skip
    return SimpleNamespace(**{**base, **fields})


def plans(policy: CopyPolicy, sources: list[Any], targets: list[Any] | None, mask: int = SCAN_COLUMNS) -> list[int]:
    """Return the plan of each row. A target given as a number is an errno."""
    rows = ItemStatusColumns.from_statuses(sources, mask)
    stated = None
    if targets is not None:
        stated = StatNamesResult(
            BatchOutcomeColumns(len(targets)), ItemStatusColumns(len(targets), SCAN_COLUMNS | OWNER_COLUMN)
        )
        for row, target in enumerate(targets):
            if isinstance(target, int):
                stated.verdicts.codes[row] = OutcomeCode.FAILED
                stated.verdicts.errnos[row] = target
            else:
                stated.verdicts.codes[row] = OutcomeCode.DONE
                stated.rows.set_statuses(row, [target])
    backend = create_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    decided = done(backend, PlanCopiesBatch(policy, rows, stated))
    backend.close()
    return list(decided.plans)


def plan(policy: CopyPolicy, source: Any, target: Any) -> int:
    return plans(policy, [source], [target])[0]


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("sync", [0, SYNC_FILE_FLAG])
def test_absent_target_is_created(keeps: bool, sync: int) -> None:
    policy = CopyPolicy(names_files_last=keeps, syncs_files=bool(sync))
    wanted = (CopyPlan.TEMPORARY if keeps else CopyPlan.NEW) | sync
    assert plans(policy, [status()] * 2, None) == [wanted] * 2
    assert plans(policy, [status()], [ABSENT]) == [wanted]


def test_each_row_is_decided_independently() -> None:
    there = status(st_mtime_ns=0)
    assert plans(CopyPolicy("changed"), [status()] * 4, [there, ABSENT, 13, status()]) == [
        CopyPlan.REPLACE, CopyPlan.NEW, CopyPlan.SLOW_PATH, CopyPlan.SKIP
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("existing", "keeps", "older", "same", "newer"),
    [
        ("replace", False, CopyPlan.REPLACE, CopyPlan.REPLACE, CopyPlan.REPLACE),
        ("changed", False, CopyPlan.REPLACE, CopyPlan.SKIP, CopyPlan.REPLACE),
        ("newer", True, CopyPlan.TEMPORARY, CopyPlan.SKIP, CopyPlan.SKIP),
        ("skip", True, CopyPlan.SKIP, CopyPlan.SKIP, CopyPlan.SKIP),
        ("fail", True, CopyPlan.REFUSE, CopyPlan.REFUSE, CopyPlan.REFUSE),
    ],
)
def test_each_policy_decides_by_age(existing: str, keeps: bool, older: int, same: int, newer: int) -> None:
    """The existing item is older than the source, the same, or newer."""
    source = status()
    times = [source.st_mtime_ns - 5 * SECOND, source.st_mtime_ns, source.st_mtime_ns + 5 * SECOND]
    targets = [status(st_mtime_ns=time) for time in times]
    policy = CopyPolicy(existing, names_files_last=keeps)
    assert plans(policy, [source] * 3, targets) == [older, same, newer]
    made = [
        plan | SYNC_FILE_FLAG if plan in (CopyPlan.REPLACE, CopyPlan.TEMPORARY) else plan
        for plan in (older, same, newer)
    ]
    assert plans(policy._replace(syncs_files=True), [source] * 3, targets) == made
    within = [same, same, same] if existing != "replace" else [CopyPlan.REPLACE] * 3
    assert plans(policy._replace(modify_window=5), [source] * 3, targets) == within


def test_batch_decides_like_single_item() -> None:
    """Random pairs without special cases, compared with the decision for a single pair (``pcopy.fsio.existing``)."""
    random = Random(7)
    kinds = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO)
    expected = {
        ExistingItemDecision.REPLACE: CopyPlan.REPLACE,
        ExistingItemDecision.SKIP: CopyPlan.SKIP,
        ExistingItemDecision.FAIL: CopyPlan.REFUSE,
    }
    seen = set()
    for existing, window in product(("replace", "changed", "newer", "skip", "fail"), (0, 1)):
        pairs = [
            (
                status(st_mtime_ns=random.randrange(4 * SECOND), st_size=random.randrange(2)),
                status(
                    st_mtime_ns=random.randrange(4 * SECOND),
                    st_size=random.randrange(2),
                    st_mode=random.choice(kinds) | 0o644,
                ),
            )
            for _ in range(200)
        ]
        wanted = [expected[decision_for_existing_item(existing, window, *pair)] for pair in pairs]
        seen |= set(wanted)
        assert plans(CopyPolicy(existing, window), [pair[0] for pair in pairs], [pair[1] for pair in pairs]) == wanted
    assert seen == set(expected.values())


@pytest.mark.parametrize(
    ("source", "policy"),
    [
        (status(st_mode=stat.S_IFLNK | 0o777), CopyPolicy()),
        (status(st_size=MAX_SMALL_FILE_BYTES + 1), CopyPolicy()),
    ],
    ids=["no file", "large"],
)
def test_unusual_sources_take_the_slow_path(source: Any, policy: CopyPolicy) -> None:
    assert plans(policy, [source, status()], None) == [CopyPlan.SLOW_PATH, CopyPlan.NEW]
    assert plan(policy._replace(existing="skip"), source, status()) == CopyPlan.SLOW_PATH


@pytest.mark.parametrize(
    ("target", "policy"),
    [
        (status(st_ctime_ns=NOW), CopyPolicy("replace", changed_since=NOW)),
        (status(st_ctime_ns=NOW), CopyPolicy("skip", changed_since=NOW)),
        (status(), CopyPolicy("replace", writes_in_place=True)),
        (status(), CopyPolicy("changed", writes_in_place=True)),
        (status(), CopyPolicy("replace", copies_owner_and_mode=False)),
        (status(), CopyPolicy("replace", makes_backups=True)),
        (status(st_mode=stat.S_IFDIR | 0o755), CopyPolicy("replace")),
        (status(), CopyPolicy("changed", compares_contents=True)),
        (status(st_mode=stat.S_IFREG | 0o600, st_uid=os.geteuid()), CopyPolicy("changed")),
        (status(st_mode=stat.S_IFREG | 0o600, st_uid=os.geteuid()), CopyPolicy("fail")),
    ],
    ids=[
        "touched", "touched, skipped", "written over", "perhaps half written", "its mode stays", "kept elsewhere",
        "a directory", "compared", "undressed", "undressed, refused",
    ],
)  # fmt: skip
def test_unusual_targets_take_the_slow_path(target: Any, policy: CopyPolicy) -> None:
    assert plan(policy, status(), target) == CopyPlan.SLOW_PATH


def test_targets_that_the_fast_path_handles() -> None:
    assert plan(CopyPolicy("replace", changed_since=NOW + 1), status(), status(st_ctime_ns=NOW)) == CopyPlan.REPLACE
    assert plan(CopyPolicy("changed", compares_contents=True), status(), status(st_size=99)) == CopyPlan.REPLACE
    assert plan(CopyPolicy("changed"), status(), status(st_mode=stat.S_IFREG | 0o600)) == CopyPlan.SKIP, (
        "somebody else's"
    )
    assert plan(CopyPolicy("skip"), status(), status(st_mode=stat.S_IFDIR | 0o755)) == CopyPlan.SKIP


@pytest.mark.parametrize(
    "policy", [CopyPolicy("changed", compares_contents=True), CopyPolicy("changed"), CopyPolicy("newer")], ids=str
)
def test_sources_without_modes_are_regular_files(policy: CopyPolicy) -> None:
    """Tasks that copy files pass sources like this: they know only the version of each."""
    there = status(st_mtime_ns=status().st_mtime_ns + SECOND * policy.compares_contents)
    wanted = CopyPlan.SLOW_PATH if policy.compares_contents else CopyPlan.SKIP
    assert plans(policy, [status()], [there], VERSION_COLUMNS) == plans(policy, [status()], [there]) == [wanted]


@pytest.mark.parametrize(("time", "reported"), [(5 * 10**20, LATEST_TIME), (-(10**20), EARLIEST_TIME)])
def test_times_beyond_64_bits_take_the_slow_path(time: int, reported: int) -> None:
    rows = ItemStatusColumns.from_statuses([status(), status(st_mtime_ns=time)], VERSION_COLUMNS)
    assert (
        rows.mtime[1] == reported and rows.content_version_of_row(1).mtime == rows.exact_time_of_row("mtime", 1) == time
    )
    assert (
        ItemStatusColumns.status_columns_from_bytes(rows.status_columns_as_bytes(), 2, VERSION_COLUMNS)
        .columns_of_selected_rows([1])
        .rows_in_range(0, 1)
        .content_version_of_row(0)
        .mtime
        == time
    )
    for policy in (CopyPolicy("changed"), CopyPolicy("newer"), CopyPolicy("skip"), CopyPolicy("replace")):
        assert plan(policy, status(st_mtime_ns=time), status(st_mtime_ns=time + 1, **THERE)) == CopyPlan.SLOW_PATH
        assert plan(policy, status(), status(st_mtime_ns=time, **THERE)) == CopyPlan.SLOW_PATH


def test_columns_survive_packing_and_selection() -> None:
    rows = ItemStatusColumns(2, SCAN_COLUMNS)
    rows.set_statuses(1, [status(st_mtime_ns=-1, st_ctime_ns=5 * 10**18)])
    again = ItemStatusColumns.status_columns_from_bytes(rows.status_columns_as_bytes(), 2, SCAN_COLUMNS)
    assert again.content_version_of_row(1) == (7, 100, -1, 5 * 10**18) and again.mode[1] == FILE and not again.uid
    assert again.content_version_of_row(0) == (0, 0, 0, 0)
    chosen = again.columns_of_selected_rows([1, 1, 0])
    assert (
        len(chosen) == 3
        and chosen.content_version_of_row(1) == again.content_version_of_row(1)
        and chosen.inode == array("Q", [7, 7, 0])
    )
    with pytest.raises(ValueError, match="length"):
        ItemStatusColumns.status_columns_from_bytes(rows.status_columns_as_bytes()[1:], 2, SCAN_COLUMNS)
