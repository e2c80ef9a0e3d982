"""Jobs that are killed and stopped at random moments end as if nothing had happened. ``campaign.py`` plays more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.campaign import distribution
from tests.chaos.interrupted import InterruptedJob, told
from tests.chaos.kinds import Grounds
from tests.support.filesystems import scratch

PIECES = 10
JOBS = 5
"""Per piece, with some two interruptions each."""


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    with scratch() as place:
        yield Grounds(place)


@pytest.mark.parametrize("piece", range(PIECES))
def test_what_was_interrupted_ends_equal(piece: int, grounds: Grounds) -> None:
    with scratch() as place:
        stories = []
        for seed in range(piece * JOBS, (piece + 1) * JOBS):
            job = InterruptedJob(grounds, place / f"job-{seed}", seed)
            stories.append(job.play())
            print(told(seed, job))
    print("\n".join(distribution(stories)))
    assert sum(map(len, stories)) >= JOBS
