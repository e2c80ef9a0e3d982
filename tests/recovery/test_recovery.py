"""Jobs that are ended anywhere and resumed lose nothing, as long as all rules are kept; without any of them they do."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.recovery.campaign import first_found, play
from tests.recovery.jobs import Job
from tests.recovery.rules import ALL, Rules
from tests.recovery.run import End

JOBS = 1000
"""The long run (``tests.recovery.campaign``) has many more."""


def test_nothing_is_lost() -> None:
    happened: Counter[str] = Counter()
    for seed in range(JOBS):
        words, wrong = play(seed)
        assert not wrong, f"seed {seed}: {wrong}"
        happened.update(words)
    enough = {word for word, times in happened.items() if times >= 20}
    resumed = {f"resumed in phase {phase}, epoch {epoch}" for phase in range(4) for epoch in ("0", "later")}
    killed = {"killed in event", "killed in written", "killed in torn", "killed in phase", "killed while resuming"}
    assert enough >= resumed | killed | {"halted", "power lost", "nothing to resume", "resumed 5 times"}


@pytest.mark.parametrize("seed", [8, 12])
@pytest.mark.parametrize("kind", ["event", "torn", "written"])
def test_ended_at_each_moment(seed: int, kind: str) -> None:
    """The first run ends between any two events, and before and after each record."""
    undisturbed = Job(seed, ends=())
    undisturbed.play()
    killed = 0
    for moment in range(undisturbed.events):
        job = Job(seed, ends=(End(kind, moment),))
        job.play()
        if f"killed in {kind}" not in job.words:
            break
        killed += 1
    assert killed >= (undisturbed.events - 1 if kind == "event" else 10)


@pytest.mark.parametrize(
    ("rule", "seed"),
    [
        ("new_ids", 2),
        ("spawned_as_told", 31),
        ("markers", 10),
        ("least_epoch", 236),
        ("phase_commit", 10),
        ("named_last", 21),
        ("named_durable", 236),
        ("fixed_roots", 1),
        ("run_in_names", 15),
        ("stale_removed", 15),
        ("sync_first", 3),
        ("notes_held", 3),
        ("keys_kept", 65),
    ],
)
def test_each_rule_is_needed(rule: str, seed: int) -> None:
    """The seed is the first that tells, so that this is quick; where the model changed, another one may tell."""
    rules = ALL._replace(**{rule: False})
    assert play(seed, rules)[1] or first_found(rules, 2000)
    assert not play(seed)[1]


def test_all_rules_are_tried() -> None:
    (mark,) = test_each_rule_is_needed.pytestmark  # type: ignore[attr-defined]
    assert {rule for rule, _ in mark.args[1]} == set(Rules._fields)
