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
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from tests.recovery.jobs import End, Job, WrongResult
from tests.recovery.machine import installed
from tests.recovery.native_calls import simulated_extension
from tests.recovery.ranks import quiet
from tests.recovery.rules import ALL, Rules

AT_ONCE = 50
SHOWN = 10


class Played(NamedTuple):
    """What happened to one job, how many system calls its work and its starts made, and what went wrong, if any."""

    words: tuple[str, ...]
    calls: int
    starting: int
    wrong: str


def play(
    seed: int, rules: Rules = ALL, ends: Sequence[End] | None = None, *, waits: bool = False, is_mirror: bool = False
) -> Played:
    """One job; ``installed`` is to be in force."""
    job = Job(seed, rules, ends, waits=waits, is_mirror=is_mirror)
    wrong = ""
    try:
        with quiet():
            job.play()
    except WrongResult as found:
        wrong = str(found)
    except Exception:  # any other end is wrong as well
        wrong = traceback.format_exc()
    return Played(tuple(job.events), job.calls, job.starting, wrong)


def play_some(
    seeds: Sequence[int], rules: Rules, *, waits: bool = False, is_mirror: bool = False, backend: str = "python"
) -> list[Played]:
    with installed(backend):
        return [play(seed, rules, waits=waits, is_mirror=is_mirror) for seed in seeds]


def first_found(rules: Rules, jobs: int, *, waits: bool = False) -> tuple[int, str] | None:
    """The first of some jobs that goes wrong, and how."""
    for seed in range(jobs):
        if wrong := play(seed, rules, waits=waits).wrong:
            return seed, wrong
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs with crashes, power losses and resumes, in virtual time.")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first job; the next ones follow")
    parser.add_argument("--without", choices=Rules._fields, action="append", default=[], help="a rule to switch off")
    parser.add_argument("--waits", action="store_true", help="tasks wait for tickets of a backend that is late")
    parser.add_argument("--mirror", action="store_true", help="what only the destination has is deleted")
    parser.add_argument("--backend", choices=("python", "c"), default="python", help="the one that copies")
    arguments = parser.parse_args()
    if arguments.backend == "c":
        simulated_extension()  # for all processes
    rules = ALL._replace(**dict.fromkeys(arguments.without, False))
    seeds = range(arguments.seed, arguments.seed + arguments.jobs)
    some = [seeds[at : at + AT_ONCE] for at in range(0, len(seeds), AT_ONCE)]
    wrong = 0
    happened: Counter[str] = Counter()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for of_some, played in zip(
            some,
            pool.map(
                partial(
                    play_some,
                    rules=rules,
                    waits=arguments.waits,
                    is_mirror=arguments.mirror,
                    backend=arguments.backend,
                ),
                some,
            ),
            strict=True,
        ):
            for seed, (words, _, _, what) in zip(of_some, played, strict=True):
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
