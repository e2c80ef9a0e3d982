"""``python -m bench.spreading``: how soon all ranks get work, and how long they have it, if there are few directories.

pcopy's engine runs a simulated copy of equal small files (``bench.simulation.directories``) in virtual time. The output
is the mean number of busy ranks in each tenth of the time until the last task ends. It is printed for the current
rules, and for the former ones, under which a task could not be divided between ranks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.simulation.cluster import Cluster, Machine
from bench.simulation.directories import FORMER_RULES, CallCounts, DirectoriesWorkload, DivisionRules
from bench.simulation.latencies import LATENCIES
from pcopy.engine.limits import EngineLimits

TENTHS = 10
"""The number of parts into which the time is divided."""


def busy_ranks_per_tenth(intervals: Sequence[tuple[float, float]], end: float) -> list[float]:
    """Return how many ``intervals`` overlap on average, in each tenth of the time from 0 to ``end``.

    An interval is the time in which a rank is busy: its beginning and its end.
    """
    step = end / TENTHS
    sums = [0.0] * TENTHS
    for start, stop in intervals:
        for tenth in range(TENTHS):
            sums[tenth] += max(0.0, min(stop, (tenth + 1) * step) - max(start, tenth * step))
    return [each / step for each in sums]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulations, print the table, and return the exit status."""
    options = _command_line_parser().parse_args(arguments)
    calls = CallCounts(options.call)
    sys.stdout.write(f"{'':8} {'ranks':>5} {'seconds':>8} {'best':>8} {'busy':>6}  in each tenth of the time\n")
    for ranks in options.ranks:
        for name, rules in (("before", FORMER_RULES), ("now", DivisionRules())):
            job = DirectoriesWorkload(options.directories, options.files, calls, rules)
            machine = Machine(ranks, LATENCIES["uniform"](options.latency), 2e-5, options.block)
            limits = EngineLimits(first_steal_wait=options.backoff, longest_steal_wait=options.backoff_cap)
            cluster = Cluster(job, machine, options.seed, limits)
            measured = cluster.run()
            tenths = busy_ranks_per_tenth(cluster.busy_intervals, measured.last_end)
            sys.stdout.write(
                f"{name:8} {ranks:5} {measured.last_end:8.2f} {measured.work / ranks:8.2f} "
                f"{measured.work / measured.last_end:6.1f}  {' '.join(f'{each:.0f}' for each in tenths)}\n"
            )
    return 0


def _command_line_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.spreading", description=(__doc__ or "").partition("\n\n")[2])
    add = parser.add_argument
    add("--ranks", type=lambda text: [int(each) for each in text.split(",")], default=[32], metavar="N,...")
    add("--directories", type=int, default=1)
    add("--files", type=int, default=2000, help="in each directory (default %(default)s)")
    add("--call", type=float, default=1e-3, metavar="SECONDS", help="time of a system call (default %(default)s)")
    add("--latency", type=float, default=1e-4, metavar="SECONDS", help="a message's mean (default %(default)s)")
    add("--block", type=float, default=8e-3, metavar="SECONDS", help="between a task's yields (default %(default)s)")
    add("--backoff", type=float, default=2e-4, metavar="SECONDS", help="an idle rank's first pause")
    add("--backoff-cap", type=float, default=0.064, metavar="SECONDS", help="the pause that it grows to")
    add("--seed", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
