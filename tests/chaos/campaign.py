"""Very many interruptions: ``python -m tests.chaos.campaign --rounds 1000 --seed 0``.

Ends with status 1 if any job went wrong; each is named by its seed, with which ``--jobs 1 --seed N`` repeats it (but
not the moments at which things happened). Shows how many interruptions met each phase.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.chaos.interrupted import InterruptedJob, Interruption
from tests.chaos.kinds import KINDS, Grounds
from tests.support.command import clean_up
from tests.support.filesystems import remove, scratch


def distribution(stories: list[list[Interruption]]) -> list[str]:
    """How often each kind of interruption met each phase."""
    met = Counter((one.what, one.phase) for story in stories for one in story)
    kinds = sorted({what for what, _ in met})
    phases = sorted({phase for _, phase in met})
    lines = [" ".join([f"{'':18}", *(f"{phase:>8}" for phase in phases)])]
    return lines + [" ".join([f"{kind:18}", *(f"{met[kind, phase]:8}" for phase in phases)]) for kind in kinds]


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs that are killed and resumed, again and again.")
    parser.add_argument("--rounds", type=int, default=1000, help="interruptions, at least")
    parser.add_argument("--jobs", type=int, default=0, help="jobs instead of rounds")
    parser.add_argument("--seed", type=int, default=0, help="of the first job; the next ones follow")
    parser.add_argument("--kind", default="", choices=sorted({kind.name for kind in KINDS}), help="of all jobs")
    parser.add_argument("--slow", action="store_true", help="stop and continue ranks at random moments")
    arguments = parser.parse_args()
    stories: list[list[Interruption]] = []
    played: Counter[str] = Counter()
    wrong, seed = 0, arguments.seed
    with scratch() as place:
        grounds = Grounds(place)
        print(f"undisturbed: {grounds.seconds:.1f} s", flush=True)
        while len(stories) < arguments.jobs if arguments.jobs else sum(map(len, stories)) < arguments.rounds:
            job = InterruptedJob(grounds, place / f"job-{seed}", seed, kind=arguments.kind, slow=arguments.slow)
            played[job.kind.name] += 1
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
    print(", ".join(f"{name}: {jobs}" for name, jobs in played.most_common()))
    print(f"{wrong} of {len(stories)} jobs went wrong, with {sum(map(len, stories))} interruptions")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
