"""Jobs that are ended anywhere and resumed lose nothing, as long as all rules are kept; without any of them they do."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from pcopy.jobs import lifecycle
from pcopy.tasks.base.phases import Phase
from tests.recovery.campaign import first_found, play
from tests.recovery.jobs import End
from tests.recovery.machine import installed
from tests.recovery.ranks import Run, patched
from tests.recovery.rules import ALL, Rules
from tests.support.extent import everything, in_turn

JOBS = range(3000) if everything() else in_turn(range(33, 333), 60, "recovery")
"""Others each day, all within five. The long run (``tests.recovery.campaign``) has many more."""

WAITING_JOBS = range(1000) if everything() else in_turn(range(100), 25, "recovery while tasks wait")

MIRRORS = range(1000) if everything() else in_turn(range(100), 25, "recovery of deletions")

OFTEN = len(JOBS) // 30
"""How often these jobs have to meet each of the moments and events that they are drawn for."""

STEP = 1 if everything() else 10
"""System calls from one end to the next."""


@pytest.fixture(scope="module", autouse=True)
def _machine() -> Iterator[None]:
    with installed():
        yield


def test_interrupted_jobs_lose_nothing_while_tasks_wait() -> None:
    """A backend does its batches later and in any order; all other work waits as well, and tasks run meanwhile."""
    at_once = 0
    for seed in WAITING_JOBS:
        played = play(seed, waits=True)
        assert not played.wrong, f"seed {seed}: {played.wrong}"
        at_once += "several batches under way" in played.words
    assert at_once >= len(WAITING_JOBS) // 10


def test_interrupted_jobs_lose_nothing() -> None:
    happened: Counter[str] = Counter()
    for seed in JOBS:
        played = play(seed)
        assert not played.wrong, f"seed {seed}: {played.wrong}"
        happened.update(played.words)
    enough = {word for word, times in happened.items() if times >= OFTEN}
    phases = Phase.COPY, Phase.LINK, Phase.STORE, Phase.FINISH, Phase.SYNC
    resumed = {f"resumed in phase {int(phase)}, with records" for phase in phases}
    killed = {f"killed in {kind}" for kind in ("call", "event", "written", "torn", "phase")}
    killed |= {"killed while beginning", "resumed in phase 0, without records"}
    others = {
        "divided",
        "halted",
        "mended",
        "power lost",
        "power lost in the end",
        "nothing to resume",
        "resumed 5 times",
    }
    assert enough >= resumed | killed | others


def test_interrupted_deletions_change_no_directory() -> None:
    for seed in MIRRORS:
        played = play(seed, is_mirror=True)
        assert not played.wrong, f"seed {seed}: {played.wrong}"


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("seed", [12, 20])
@pytest.mark.parametrize("kind", ["call", "torn", "written"])
def test_job_ended_at_each_call_or_record_completes_after_resume(seed: int, kind: str) -> None:
    """The first run ends with each system call, and before and after each record."""
    undisturbed = play(seed, ends=())
    calls = undisturbed.calls + undisturbed.starting
    if kind == "call":
        ends = [End("start", moment) for moment in range(0, undisturbed.starting, STEP)]
        ends += [End("call", moment) for moment in range(0, undisturbed.calls, STEP)]
    else:
        ends = [End(kind, moment) for moment in range(calls)]
    killed = 0
    for end in ends:
        played = play(seed, ends=(end,))
        assert not played.wrong, f"{end}: {played.wrong}"
        if not any(word.startswith("killed") for word in played.words):
            break
        killed += 1
    assert killed >= (0.9 * calls // STEP if kind == "call" else 3)  # at last rank 0 has ended, and others have not


def test_same_seed_gives_same_job() -> None:
    assert play(7) == play(7)


def test_system_calls_of_a_start_do_not_change_the_job() -> None:
    """Else each change of what pcopy does at first would make other jobs of all seeds."""
    begin = Run._begin

    def asking(run: Run) -> None:
        for _ in range(5):
            os.stat("/")
        begin(run)

    ends = End("phase", 20, Phase.COPY), End("torn", 3)
    for seed in range(3):
        usual = play(seed, ends=ends)
        with patched([(Run, "_begin", asking)]):
            other = play(seed, ends=ends)
        assert (other.words, other.calls, other.wrong) == (usual.words, usual.calls, "")
        assert other.starting > usual.starting


SEEDS: dict[str, tuple[int, ...]] = {
    "new_ids": (6, 10, 11),
    "spawned_as_told": (157, 366, 246),
    "markers": (19, 16, 62),
    "least_epoch": (13, 1, 5),
    "phase_commit": (23, 10, 6),
    "named_last": (32, 91, 66),
    "named_durable": (285, 252, 292),
    "fixed_roots": (2, 1, 3),
    "run_in_names": (1, 11, 6),
    "stale_removed": (13, 1, 11),
    "sync_first": (2, 11, 3),
    "notes_held": (9, 10, 6),
    "keys_kept": (1044, 2150, 1949),
    "records_synced": (93, 88, 15),
    "names_synced": (15, 47, 36),
    "synced_at_end": (22, 44, 136),
    "pinned": (78, 88, 64),
}
"""Jobs that go wrong without a rule, one after the other, in case that one does not any more."""

WAITING = ("pinned",)
"""Rules that are needed only where tasks wait for tickets."""


REPLACEMENT_ERRORS = re.compile(r"^(?:Type|Name|Attribute|Import|NotImplemented)Error\b", re.MULTILINE)
"""Errors of a replacement that does not fit the code: they say nothing about the rule."""


@pytest.mark.parametrize("rule", Rules._fields)
def test_each_rule_is_needed(rule: str) -> None:
    """All jobs are searched only where each in the table goes well without the rule: other seeds belong there then."""
    rules, waits = ALL._replace(**{rule: False}), rule in WAITING
    found = ((seed, play(seed, rules, waits=waits).wrong) for seed in SEEDS[rule])
    seed, wrong = next((each for each in found if each[1]), None) or first_found(rules, 2000, waits=waits) or (-1, "")
    assert wrong
    assert not REPLACEMENT_ERRORS.search(wrong), wrong
    assert not play(seed, waits=waits).wrong


def test_patching_a_missing_attribute_is_an_error() -> None:
    """A rule whose code has moved or has another name would be kept, and its jobs would all go well."""
    before = lifecycle.recorded_roots_and_options
    with (
        pytest.raises(AttributeError, match="no reassigned of its own"),
        patched([(lifecycle, "recorded_roots_and_options", None), (lifecycle, "reassigned", None)]),
    ):
        pass
    assert lifecycle.recorded_roots_and_options is before
