"""Very many interruptions: ``python -m tests.chaos.campaign --rounds 1000 --seed 0``.

Ends with status 1 if any job went wrong; each is named by its seed, with which ``--jobs 1 --seed N`` repeats it (but
not the moments at which things happened). Shows how many interruptions met each phase.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.chaos.dataset import make_dataset
from tests.chaos.interrupted import Dataset, InterruptedJob, Interruption, measure
from tests.support.command import clean_up
from tests.support.filesystems import remove, scratch

SOURCE_SEED = 6


def make_measured(place: Path) -> Dataset:
    """The dataset of all jobs."""
    make_dataset(place / "source", SOURCE_SEED)
    return measure(place / "source", place / "measured")


def distribution(stories: list[list[Interruption]]) -> list[str]:
    """How often each kind of interruption met each phase."""
    met = Counter((one.what, one.phase) for story in stories for one in story)
    kinds = sorted({what for what, _ in met})
    phases = sorted({phase for _, phase in met})
    lines = [" ".join([f"{'':10}", *(f"{phase:>8}" for phase in phases)])]
    return lines + [" ".join([f"{kind:10}", *(f"{met[kind, phase]:8}" for phase in phases)]) for kind in kinds]


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs that are killed and resumed, again and again.")
    parser.add_argument("--rounds", type=int, default=1000, help="interruptions, at least")
    parser.add_argument("--jobs", type=int, default=0, help="jobs instead of rounds")
    parser.add_argument("--seed", type=int, default=0, help="of the first job; the next ones follow")
    arguments = parser.parse_args()
    stories: list[list[Interruption]] = []
    wrong, seed = 0, arguments.seed
    with scratch() as place:
        dataset = make_measured(place)
        print(f"undisturbed: {dataset.undisturbed.totals}, {dataset.undisturbed.seconds:.1f} s", flush=True)
        while len(stories) < arguments.jobs if arguments.jobs else sum(map(len, stories)) < arguments.rounds:
            job = InterruptedJob(dataset, place / f"job-{seed}", seed)
            try:
                job.play()
            except Exception as error:  # any end but a good one is wrong
                wrong += 1
                print(f"seed {seed}: {error}", flush=True)
            else:
                remove(place / f"job-{seed}")
            stories.append(job.story)
            seed += 1
    clean_up()
    print("\n".join(distribution(stories)))
    print(f"{wrong} of {len(stories)} jobs went wrong, with {sum(map(len, stories))} interruptions")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
