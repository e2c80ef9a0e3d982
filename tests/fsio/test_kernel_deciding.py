"""What becomes of files whose names may be taken, from status alone: what each plan is for."""

from __future__ import annotations

import os
import stat
from array import array
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from pcopy.fsio.existing import Decision, decide
from pcopy.fsio.kernel.batches import SYNC, Plan, Stated
from pcopy.fsio.kernel.choose import make_kernel
from pcopy.fsio.kernel.columns import FIRST, FOUND, LAST, OWNER, VERSION, Code, Rows, Verdicts
from pcopy.fsio.kernel.decide import Decide, Policy
from pcopy.fsio.kernel.interface import SMALL_FILE, Settings
from pcopy.fsio.preserve import Preserve
from tests.fsio.kernel_bench import done

SECOND = 10**9
NOW = 1_700_000_000 * SECOND
THERE: dict[str, Any] = {"st_ctime_ns": NOW - 10 * SECOND}
ABSENT = 2
FILE = stat.S_IFREG | 0o644


def status(**fields: int) -> Any:
    """A regular file of 100 bytes, somebody's, from a while ago."""
    base = {
        "st_mode": FILE, "st_uid": 4242, "st_gid": 4242, "st_size": 100, "st_ino": 7,
        "st_dev": 8, "st_rdev": 0, "st_mtime_ns": NOW - 100 * SECOND, "st_ctime_ns": NOW - 100 * SECOND,
    }  # fmt: skip
    return SimpleNamespace(**{**base, **fields})


def plans(policy: Policy, sources: list[Any], targets: list[Any] | None, mask: int = FOUND) -> list[int]:
    """Of targets a number is an errno."""
    rows = Rows.of(sources, mask)
    stated = None
    if targets is not None:
        stated = Stated(Verdicts(len(targets)), Rows(len(targets), FOUND | OWNER))
        for row, target in enumerate(targets):
            if isinstance(target, int):
                stated.verdicts.codes[row] = Code.FAILED
                stated.verdicts.errnos[row] = target
            else:
                stated.verdicts.codes[row] = Code.DONE
                stated.rows.put(row, [target])
    kernel = make_kernel(Settings(Preserve(), 0o022))
    decided = done(kernel, Decide(policy, rows, stated))
    kernel.close()
    return list(decided.plans)


def plan(policy: Policy, source: Any, target: Any) -> int:
    return plans(policy, [source], [target])[0]


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("sync", [0, SYNC])
def test_where_nothing_is_there(keeps: bool, sync: int) -> None:
    policy = Policy(keeps=keeps, sync=bool(sync))
    wanted = (Plan.TEMPORARY if keeps else Plan.NEW) | sync
    assert plans(policy, [status()] * 2, None) == [wanted] * 2
    assert plans(policy, [status()], [ABSENT]) == [wanted]


def test_each_row_by_itself() -> None:
    there = status(st_mtime_ns=0)
    assert plans(Policy("changed"), [status()] * 4, [there, ABSENT, 13, status()]) == [
        Plan.REPLACE, Plan.NEW, Plan.CARE, Plan.SKIP
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("existing", "keeps", "older", "same", "newer"),
    [
        ("replace", False, Plan.REPLACE, Plan.REPLACE, Plan.REPLACE),
        ("changed", False, Plan.REPLACE, Plan.SKIP, Plan.REPLACE),
        ("newer", True, Plan.TEMPORARY, Plan.SKIP, Plan.SKIP),
        ("skip", True, Plan.SKIP, Plan.SKIP, Plan.SKIP),
        ("fail", True, Plan.REFUSE, Plan.REFUSE, Plan.REFUSE),
    ],
)
def test_policies(existing: str, keeps: bool, older: int, same: int, newer: int) -> None:
    """What is there is older than the source, the same, or newer."""
    source = status()
    times = [source.st_mtime_ns - 5 * SECOND, source.st_mtime_ns, source.st_mtime_ns + 5 * SECOND]
    targets = [status(st_mtime_ns=time) for time in times]
    policy = Policy(existing, keeps=keeps)
    assert plans(policy, [source] * 3, targets) == [older, same, newer]
    made = [plan | SYNC if plan in (Plan.REPLACE, Plan.TEMPORARY) else plan for plan in (older, same, newer)]
    assert plans(policy._replace(sync=True), [source] * 3, targets) == made
    within = [same, same, same] if existing != "replace" else [Plan.REPLACE] * 3
    assert plans(policy._replace(modify_window=5), [source] * 3, targets) == within


def test_as_it_is_decided_for_one_item() -> None:
    """At random, against the decision for one pair (``pcopy.fsio.existing``), where there is nothing special."""
    random = Random(7)
    kinds = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO)
    expected = {Decision.REPLACE: Plan.REPLACE, Decision.SKIP: Plan.SKIP, Decision.FAIL: Plan.REFUSE}
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
        wanted = [expected[decide(existing, window, *pair)] for pair in pairs]
        seen |= set(wanted)
        assert plans(Policy(existing, window), [pair[0] for pair in pairs], [pair[1] for pair in pairs]) == wanted
    assert seen == set(expected.values())


@pytest.mark.parametrize(
    ("source", "policy"),
    [
        (status(st_mode=stat.S_IFLNK | 0o777), Policy()),
        (status(st_size=SMALL_FILE + 1), Policy()),
    ],
    ids=["no file", "large"],
)
def test_sources_that_want_care(source: Any, policy: Policy) -> None:
    assert plans(policy, [source, status()], None) == [Plan.CARE, Plan.NEW]
    assert plan(policy._replace(existing="skip"), source, status()) == Plan.CARE


@pytest.mark.parametrize(
    ("target", "policy"),
    [
        (status(st_ctime_ns=NOW), Policy("replace", touched=NOW)),
        (status(st_ctime_ns=NOW), Policy("skip", touched=NOW)),
        (status(), Policy("replace", in_place=True)),
        (status(), Policy("changed", in_place=True)),
        (status(), Policy("replace", dresses=False)),
        (status(), Policy("replace", backs_up=True)),
        (status(st_mode=stat.S_IFDIR | 0o755), Policy("replace")),
        (status(), Policy("changed", contents=True)),
        (status(st_mode=stat.S_IFREG | 0o600, st_uid=os.geteuid()), Policy("changed")),
        (status(st_mode=stat.S_IFREG | 0o600, st_uid=os.geteuid()), Policy("fail")),
    ],
    ids=[
        "touched", "touched, skipped", "written over", "perhaps half written", "its mode stays", "kept elsewhere",
        "a directory", "compared", "undressed", "undressed, refused",
    ],
)  # fmt: skip
def test_targets_that_want_care(target: Any, policy: Policy) -> None:
    assert plan(policy, status(), target) == Plan.CARE


def test_targets_that_want_no_care() -> None:
    assert plan(Policy("replace", touched=NOW + 1), status(), status(st_ctime_ns=NOW)) == Plan.REPLACE
    assert plan(Policy("changed", contents=True), status(), status(st_size=99)) == Plan.REPLACE
    assert plan(Policy("changed"), status(), status(st_mode=stat.S_IFREG | 0o600)) == Plan.SKIP, "somebody else's"
    assert plan(Policy("skip"), status(), status(st_mode=stat.S_IFDIR | 0o755)) == Plan.SKIP


@pytest.mark.parametrize("policy", [Policy("changed", contents=True), Policy("changed"), Policy("newer")], ids=str)
def test_sources_without_modes_are_regular_files(policy: Policy) -> None:
    """So they come from a task that copies files: what it knows of them is their version."""
    there = status(st_mtime_ns=status().st_mtime_ns + SECOND * policy.contents)
    wanted = Plan.CARE if policy.contents else Plan.SKIP
    assert plans(policy, [status()], [there], VERSION) == plans(policy, [status()], [there]) == [wanted]


@pytest.mark.parametrize(("time", "told"), [(5 * 10**20, LAST), (-(10**20), FIRST)])
def test_times_that_no_64_bits_hold_are_looked_at_with_care(time: int, told: int) -> None:
    rows = Rows.of([status(), status(st_mtime_ns=time)], VERSION)
    assert rows.mtime[1] == told and rows.version(1).mtime == rows.time("mtime", 1) == time
    assert Rows.unpacked(rows.packed(), 2, VERSION).chosen([1]).part(0, 1).version(0).mtime == time
    for policy in (Policy("changed"), Policy("newer"), Policy("skip"), Policy("replace")):
        assert plan(policy, status(st_mtime_ns=time), status(st_mtime_ns=time + 1, **THERE)) == Plan.CARE
        assert plan(policy, status(), status(st_mtime_ns=time, **THERE)) == Plan.CARE


def test_columns_travel() -> None:
    rows = Rows(2, FOUND)
    rows.put(1, [status(st_mtime_ns=-1, st_ctime_ns=5 * 10**18)])
    again = Rows.unpacked(rows.packed(), 2, FOUND)
    assert again.version(1) == (7, 100, -1, 5 * 10**18) and again.mode[1] == FILE and not again.uid
    assert again.version(0) == (0, 0, 0, 0)
    chosen = again.chosen([1, 1, 0])
    assert len(chosen) == 3 and chosen.version(1) == again.version(1) and chosen.inode == array("Q", [7, 7, 0])
    with pytest.raises(ValueError, match="length"):
        Rows.unpacked(rows.packed()[1:], 2, FOUND)
