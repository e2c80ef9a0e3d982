"""Jobs that are killed and stopped at random moments end with the result of an uninterrupted job. ``campaign.py`` runs
more of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.campaign import distribution
from tests.chaos.interrupted import InterruptedJob, reported
from tests.chaos.kinds import KINDS, Baselines, kind_of
from tests.support.extent import in_turn
from tests.support.filesystems import scratch

JOBS = 60
"""Number of jobs; each has about two interruptions."""

AT_LEAST = 12
"""Number of jobs of a run, a different selection each day; at least one of each kind."""

PIECE = 3
SEEDS = in_turn(range(JOBS), AT_LEAST, "kills")


@pytest.fixture(scope="module")
def baselines() -> Iterator[Baselines]:
    with scratch() as place:
        yield Baselines(place)


@pytest.mark.parametrize("piece", range(len(SEEDS) // PIECE))
def test_interrupted_jobs_end_with_an_equal_copy(piece: int, baselines: Baselines) -> None:
    with scratch() as place:
        histories = []
        for seed in SEEDS[piece * PIECE : (piece + 1) * PIECE]:
            job = InterruptedJob(baselines, place / f"job-{seed}", seed)
            histories.append(job.run())
            print(reported(seed, job))
    print("\n".join(distribution(histories)))
    assert sum(map(len, histories)) >= PIECE


def test_seeds_cover_every_kind_of_job() -> None:
    assert {kind_of(seed).name for seed in SEEDS} == {kind.name for kind in KINDS}
