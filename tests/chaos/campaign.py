"""Run jobs with very many interruptions: ``python -m tests.chaos.campaign --rounds 1000 --seed 0``.

The exit status is 1 if any job went wrong. Each such job is named by its seed: ``--jobs 1 --seed N`` repeats the job,
but not the moments of its interruptions. The output shows how many interruptions happened in each phase.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.chaos.interrupted import InterruptedJob, Interruption
from tests.chaos.kinds import KINDS, Baselines
from tests.support.command import clean_up
from tests.support.filesystems import remove, scratch


def distribution(histories: list[list[Interruption]]) -> list[str]:
    """Return a table: the number of interruptions of each kind in each phase."""
    met = Counter((one.what, one.phase) for history in histories for one in history)
    kinds = sorted({what for what, _ in met})
    phases = sorted({phase for _, phase in met})
    lines = [" ".join([f"{'':18}", *(f"{phase:>8}" for phase in phases)])]
    return lines + [" ".join([f"{kind:18}", *(f"{met[kind, phase]:8}" for phase in phases)]) for kind in kinds]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run jobs that are killed and resumed repeatedly.")
    parser.add_argument("--rounds", type=int, default=1000, help="interruptions, at least")
    parser.add_argument("--jobs", type=int, default=0, help="jobs instead of rounds")
    parser.add_argument("--seed", type=int, default=0, help="of the first job; the next ones follow")
    parser.add_argument("--kind", default="", choices=sorted({kind.name for kind in KINDS}), help="of all jobs")
    parser.add_argument("--slow", action="store_true", help="stop and continue ranks at random moments")
    arguments = parser.parse_args()
    histories: list[list[Interruption]] = []
    jobs_by_kind: Counter[str] = Counter()
    wrong, seed = 0, arguments.seed
    with scratch() as place:
        baselines = Baselines(place)
        print(f"undisturbed: {baselines.seconds:.1f} s", flush=True)
        while len(histories) < arguments.jobs if arguments.jobs else sum(map(len, histories)) < arguments.rounds:
            job = InterruptedJob(baselines, place / f"job-{seed}", seed, kind=arguments.kind, slow=arguments.slow)
            jobs_by_kind[job.kind.name] += 1
            try:
                job.run()
            except Exception as error:  # every exception means that the job went wrong
                wrong += 1
                print(f"seed {seed}: {error}", flush=True)
            else:
                remove(place / f"job-{seed}")
            histories.append(job.history)
            seed += 1
    clean_up()
    print("\n".join(distribution(histories)))
    print(", ".join(f"{name}: {jobs}" for name, jobs in jobs_by_kind.most_common()))
    print(f"{wrong} of {len(histories)} jobs went wrong, with {sum(map(len, histories))} interruptions")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
