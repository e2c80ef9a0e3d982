"""Jobs that are killed and stopped at random moments end as if nothing had happened. ``campaign.py`` plays more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.campaign import distribution, make_measured
from tests.chaos.interrupted import Dataset, InterruptedJob, told
from tests.support.filesystems import scratch

PIECES = 10
JOBS = 5
"""Per piece, with some two interruptions each."""


@pytest.fixture(scope="module")
def dataset() -> Iterator[Dataset]:
    with scratch() as place:
        yield make_measured(place)


@pytest.mark.parametrize("piece", range(PIECES))
def test_what_was_interrupted_ends_equal(piece: int, dataset: Dataset) -> None:
    with scratch() as place:
        stories = []
        for seed in range(piece * JOBS, (piece + 1) * JOBS):
            stories.append(InterruptedJob(dataset, place / f"job-{seed}", seed).play())
            print(told(seed, stories[-1]))
    print("\n".join(distribution(stories)))
    assert sum(map(len, stories)) >= JOBS
