"""``python -m bench.simulate_job``: the performance of the engine with thousands of ranks, without a cluster.

pcopy's own code for ranks (nodes), queues, work stealing and the detection of the end of a phase runs a synthetic job
in virtual time, on a simulated network with random latencies. The table has one line for each shape of job, termination
detector and number of ranks. The same options always give the same table; the speed of the simulation itself is printed
to standard error.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple, TextIO

from bench.simulation.cluster import Cluster, Machine, SimulationResult
from bench.simulation.latencies import LATENCIES
from bench.simulation.plot import Panel, draw
from bench.simulation.workloads import SHAPES, WorkloadParameters
from pcopy.engine.limits import EngineLimits
from pcopy.engine.safra import TERMINATION_DETECTORS

MAX_RANKS = 16_384
"""The maximum number of simulated ranks."""

_COLUMNS = (
    ("shape", "shape of the job"),
    ("detector", "detector of the end of the phase"),
    ("ranks", ""),
    ("tasks", "of all ranks"),
    ("seconds", "virtual, until the last rank receives the message to stop"),
    ("efficiency", "the work, relative to what all ranks at their speeds could have done in that time"),
    ("steals", "requests answered with tasks"),
    ("refused", "requests answered with none"),
    ("messages", "per rank, on average"),
    ("most", "messages that one rank received"),
    ("queued", "tasks in one rank's queue, at most"),
    ("KiB", "in memory of one rank's queue, at most"),
    ("detected", "latencies (handling included) from the last task's end until the root knows"),
    ("counted", "... until it has the exact sums of all counters"),
    ("stopped", "... until the last rank knows"),
)
"""The columns of the table, and their explanations in the help."""


class SimulatedJobResult(NamedTuple):
    """One line of the table: the results of one simulated job.

    ``hop`` is the mean time, in seconds, from sending a message to its receipt; ``elapsed`` is the processor time of
    the simulation.
    """

    shape: str
    termination: str
    hop: float
    measured: SimulationResult
    elapsed: float

    def hops(self, at: float) -> float:
        """Return the time from the end of the last task to ``at`` (virtual seconds), in hops.

        A hop is the mean time from sending a message to its receipt.
        """
        return (at - self.measured.last_end) / self.hop

    def cells(self) -> list[str]:
        """Return this line of the table: the texts of its columns."""
        run = self.measured
        return [
            self.shape,
            self.termination,
            f"{run.size}",
            f"{run.tasks}",
            f"{run.stopped:.2f}",
            f"{run.efficiency:.1%}",
            f"{run.steals}",
            f"{run.refused}",
            f"{run.messages / run.size:.0f}",
            f"{run.most_messages}",
            f"{run.most_tasks}",
            f"{run.most_bytes / 1024:.0f}",
            *(f"{self.hops(at):.1f}" for at in (run.detected, run.counted, run.stopped)),
        ]


def simulate_job(options: argparse.Namespace, shape: str, termination: str, ranks: int) -> SimulatedJobResult:
    """Simulate one job and return its results. Raise ``InvariantBroken`` if the engine violates one of its rules.

    Args:
        options: the parsed command line.
        shape: the name of the job's shape (its tasks and how they spawn others).
        termination: the name of the method by which the ranks notice that all tasks are done.
        ranks: the number of ranks.
    """
    begin = time.process_time()
    tasks = options.total_tasks or options.tasks * ranks
    job = WorkloadParameters(tasks, options.seconds, options.misjudged, options.payload)
    workload = SHAPES[shape](job, Random(options.seed))
    machine = Machine(
        ranks,
        LATENCIES[options.spread](options.latency),
        options.handling,
        options.block,
        round(options.slow * ranks),
        options.slowness,
    )
    limits = EngineLimits(
        fan_out=options.fan_out,
        longest_steal_wait=options.backoff_cap,
        queue_memory_bytes=options.memory,
        scan_ahead_bytes=options.memory // 2,
    )
    measured = Cluster(workload, machine, options.seed, limits, termination).run()
    return SimulatedJobResult(
        shape, termination, options.latency + options.handling, measured, time.process_time() - begin
    )


def markdown_table(results: Sequence[SimulatedJobResult]) -> str:
    """Return the results as a Markdown table with aligned columns."""
    rows = [[name for name, _ in _COLUMNS], *(result.cells() for result in results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    dashes = ["-" * (width - 1) + ("-" if index < 2 else ":") for index, width in enumerate(widths)]
    aligned = [
        [
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in (rows[0], dashes, *rows[1:])
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in aligned)


def efficiency_chart(results: Sequence[SimulatedJobResult]) -> str:
    """Return curves over the number of ranks as SVG: the efficiency, and the time until all ranks know of the end."""
    efficiency: dict[str, list[tuple[float, float]]] = {}
    stopped: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        name, size = f"{result.shape}, {result.termination}", result.measured.size
        efficiency.setdefault(name, []).append((size, 100 * result.measured.efficiency))
        stopped.setdefault(name, []).append((size, result.hops(result.measured.stopped)))
    return draw(
        [
            Panel("efficiency, %", efficiency, range(0, 101, 20)),
            Panel("last task's end to last rank's stop, latencies", stopped, (1, 10, 100, 1000, 10_000, 100_000), True),
        ]
    )


def main(arguments: Sequence[str] | None = None, out: TextIO | None = None) -> int:
    """Print the table to ``out`` (default: standard output) and the speed of the simulation to standard error."""
    options = _command_line_parser().parse_args(arguments)
    results = []
    for shape in options.shape:
        for termination in options.termination:
            for ranks in options.ranks:
                result = simulate_job(options, shape, termination, ranks)
                results.append(result)
                rate = result.measured.events / max(result.elapsed, 1e-3)
                sys.stderr.write(
                    f"{shape}, {termination}, {ranks} ranks: {result.measured.events} events "
                    f"in {result.elapsed:.1f} s, {rate:.0f} events/s\n"
                )
    (out or sys.stdout).write(markdown_table(results))
    if options.svg:
        Path(options.svg).write_text(efficiency_chart(results))
    return 0


def _command_line_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    limits = EngineLimits()
    parser = argparse.ArgumentParser(
        prog="python -m bench.simulate",
        description=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="columns:\n" + "".join(f"  {name:<11} {text}\n" for name, text in _COLUMNS if text),
    )
    add = parser.add_argument
    add("--ranks", type=_parse_rank_counts, default=(64,), metavar="N,...", help=f"1 to {MAX_RANKS}")
    add("--shape", type=_list_parser(SHAPES), default=("tree",), metavar="NAME,...", help=", ".join(SHAPES))
    add(
        "--termination",
        type=_list_parser(TERMINATION_DETECTORS),
        default=("tree",),
        metavar="NAME,...",
        help=", ".join(TERMINATION_DETECTORS),
    )
    add("--tasks", type=int, default=200, help="tasks per rank (default %(default)s)")
    add("--total-tasks", type=int, metavar="TASKS", help="tasks of all ranks together, instead")
    add("--seconds", type=float, default=0.02, help="a task's mean time (default %(default)s)")
    add("--misjudged", type=float, default=2.0, metavar="FACTOR", help="estimates are wrong by up to this factor")
    add("--payload", type=int, default=100, metavar="BYTES", help="size of a task (default %(default)s)")
    add("--latency", type=float, default=1e-4, metavar="SECONDS", help="a message's mean (default %(default)s)")
    add(
        "--spread",
        choices=sorted(LATENCIES),
        default="uniform",
        help="distribution of the latencies (default %(default)s)",
    )
    add("--handling", type=float, default=2e-5, metavar="SECONDS", help="to process a message (default %(default)s)")
    add("--block", type=float, default=1e-3, metavar="SECONDS", help="between a task's yields (default %(default)s)")
    add("--slow", type=float, default=0.0, metavar="SHARE", help="share of the ranks that are slow, 0 to 1")
    add(
        "--slowness",
        type=float,
        default=10.0,
        metavar="FACTOR",
        help="by which slow ranks are slower (default %(default)s)",
    )
    add("--fan-out", type=int, default=limits.fan_out, help="children of a rank in the tree (default %(default)s)")
    add("--backoff-cap", type=float, default=limits.longest_steal_wait, metavar="SECONDS", help="an idle rank's pause")
    add(
        "--memory",
        type=int,
        default=limits.queue_memory_bytes,
        metavar="BYTES",
        help="memory of a rank's queue (default %(default)s)",
    )
    add("--seed", type=int, default=1)
    add("--svg", metavar="FILE", help="draw efficiency and detection over the number of ranks")
    return parser


def _parse_rank_counts(text: str) -> tuple[int, ...]:
    """Return the numbers in a comma-separated list. Raise ``ArgumentTypeError`` for one that is out of range."""
    sizes = tuple(int(part) for part in text.split(","))
    if not all(1 <= size <= MAX_RANKS for size in sizes):
        raise argparse.ArgumentTypeError(f"write numbers from 1 to {MAX_RANKS}")
    return sizes


def _list_parser(names: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a converter for argparse of a comma-separated list, whose elements must be among ``names``."""
    known = tuple(names)

    def read(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        if not set(chosen) <= set(known):
            raise argparse.ArgumentTypeError(f"choose from {', '.join(known)}")
        return chosen

    return read


if __name__ == "__main__":
    sys.exit(main())
