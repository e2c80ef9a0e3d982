"""Jobs that are killed and stopped at random moments end as if nothing had happened. ``campaign.py`` plays more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.campaign import distribution
from tests.chaos.interrupted import InterruptedJob, reported
from tests.chaos.kinds import KINDS, Grounds, kind_of
from tests.support.extent import in_turn
from tests.support.filesystems import scratch

JOBS = 60
"""With some two interruptions each."""

AT_LEAST = 12
"""Of these, others each day; at least one of each kind."""

PIECE = 3
SEEDS = in_turn(range(JOBS), AT_LEAST, "kills")


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    with scratch() as place:
        yield Grounds(place)


@pytest.mark.parametrize("piece", range(len(SEEDS) // PIECE))
def test_what_was_interrupted_ends_equal(piece: int, grounds: Grounds) -> None:
    with scratch() as place:
        stories = []
        for seed in SEEDS[piece * PIECE : (piece + 1) * PIECE]:
            job = InterruptedJob(grounds, place / f"job-{seed}", seed)
            stories.append(job.play())
            print(reported(seed, job))
    print("\n".join(distribution(stories)))
    assert sum(map(len, stories)) >= PIECE


def test_each_kind_is_played() -> None:
    assert {kind_of(seed).name for seed in SEEDS} == {kind.name for kind in KINDS}
