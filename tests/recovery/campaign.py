"""Very many jobs, on all processors: ``python -m tests.recovery.campaign --jobs 20000 --seed 0``.

Ends with status 1 if any job went wrong; each is named by its seed, with which ``--seed N --jobs 1`` repeats it.
``--without RULE`` switches a rule off.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.recovery.jobs import Found, Job
from tests.recovery.rules import ALL, Rules

AT_ONCE = 50
SHOWN = 10


def play(seed: int, rules: Rules = ALL) -> tuple[tuple[str, ...], str]:
    """What happened to one job, and what went wrong, if anything did."""
    job = Job(seed, rules)
    try:
        job.play()
    except Found as found:
        return tuple(job.words), str(found)
    except Exception:  # any other end is wrong as well
        return tuple(job.words), traceback.format_exc()
    return tuple(job.words), ""


def first_found(rules: Rules, jobs: int, first: int = 0) -> tuple[int, str] | None:
    """The first of some jobs that goes wrong, and how."""
    for seed in range(first, first + jobs):
        _, wrong = play(seed, rules)
        if wrong:
            return seed, wrong
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs with crashes, power losses and resumes, in virtual time.")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first job; the next ones follow")
    parser.add_argument("--without", choices=Rules._fields, action="append", default=[], help="a rule to switch off")
    arguments = parser.parse_args()
    rules = ALL._replace(**dict.fromkeys(arguments.without, False))
    seeds = range(arguments.seed, arguments.seed + arguments.jobs)
    wrong = 0
    happened: Counter[str] = Counter()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for seed, (words, what) in zip(
            seeds, pool.map(partial(play, rules=rules), seeds, chunksize=AT_ONCE), strict=True
        ):
            happened.update(words)
            wrong += bool(what)
            if what and wrong <= SHOWN:
                print(f"seed {seed}: {what}", flush=True)
    for word, times in sorted(happened.items()):
        print(f"{times:8} {word}")
    print(f"{wrong} of {arguments.jobs} jobs went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
