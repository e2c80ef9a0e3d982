"""The program ``pdbench``: measures the speed of a file system with many processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcopy.cli.argument_types import (
    MAX_IN_FLIGHT,
    Option,
    parse_number_in_range,
    parse_positive,
    parse_positive_size,
    parse_seconds,
)
from pcopy.cli.common_options import (
    COMMON_OPTIONS,
    output_settings,
    refuse_invalid_file_names,
)
from pcopy.cli.mistakes import ADVICE_OF_PDBENCH
from pcopy.cli.program import ProgramCommandLine
from pcopy.errors import RequestRefused, path_refused
from pcopy.fsio.backend.choose import backend_name

if TYPE_CHECKING:
    from argparse import Namespace

    from pcopy.launch.tool import ToolEntryPoint
    from pcopy.tools.arguments import BenchArguments

BENCHMARK_TEST_NAMES = ("create", "stat", "open", "readdir", "rename", "unlink", "write", "read")
"""The measurements that ``--tests`` can select."""
DEFAULT_NUMBER_OF_FILES, DEFAULT_FILE_SIZE, DEFAULT_SECONDS, DEFAULT_REPEATS = 10_000, 32 << 20, 0.1, 3
"""Defaults of ``--files`` (a number), ``--size`` (bytes), ``--time`` (seconds) and ``--repeat`` (a number).

With these values a run takes less than a minute.
"""
DEFAULT_BLOCK_SIZES = (64 << 10, 1 << 20, 8 << 20)
"""Default of ``--blocks``, the bytes of one write or read: a small size, the one that pcopy uses, and a large one."""
DEFAULT_MAX_IN_FLIGHT = 16
"""Default of ``--in-flight``. If 16 operations at the same time are not faster than fewer, more are hardly faster."""
_MEMORY_PAGE_SIZE = 4096
"""The size of a page in bytes: with ``--direct`` (O_DIRECT) sizes must be multiples of it."""


def parse_measurement_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list of measurements. Raise ``ValueError`` for an unknown one."""
    chosen = tuple(text.split(","))
    for name in chosen:
        if name not in BENCHMARK_TEST_NAMES:
            raise ValueError(f"'{name}' is not one of {', '.join(BENCHMARK_TEST_NAMES)}")
    return chosen


def parse_block_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in a comma-separated list, in bytes, each once. Raise ``ValueError`` for an invalid one."""
    return tuple(dict.fromkeys(parse_positive_size(word, "a block holds") for word in text.split(",")))


def parse_in_flight_count(text: str) -> int:
    """Return the number in ``text``, the value of ``--in-flight``.

    Raise ``ValueError`` if it is not a number from 1 to ``MAX_IN_FLIGHT``.
    """
    number = parse_number_in_range(text, 1, MAX_IN_FLIGHT)
    if number is None:
        raise ValueError(f"not a number from 1 to {MAX_IN_FLIGHT}")
    return number


PDBENCH_OPTIONS: tuple[Option, ...] = (
    Option(
        "--tests",
        "pdbench",
        "what is measured",
        f"tests to run, separated by commas: some of {', '.join(BENCHMARK_TEST_NAMES)} (default: all)",
        brief="tests to run, such as create,stat (default: all)",
        value="LIST",
        parse=parse_measurement_names,
        list_words=lambda: BENCHMARK_TEST_NAMES,
        default=(),
    ),
    Option(
        "--files",
        "pdbench",
        "what is measured",
        f"maximum number of files created per rank (default {DEFAULT_NUMBER_OF_FILES:,})",
        brief="files created per rank, at most",
        value="N",
        parse=parse_positive,
        default=DEFAULT_NUMBER_OF_FILES,
    ),
    Option(
        "--size",
        "pdbench",
        "what is measured",
        "maximum number of bytes written per rank (default 32M)",
        brief="bytes written per rank, at most",
        value="SIZE",
        parse=lambda text: parse_positive_size(text, "a file holds"),
        default=DEFAULT_FILE_SIZE,
    ),
    Option(
        "--blocks",
        "pdbench",
        "what is measured",
        "bytes of one write or read, or several sizes, separated by commas (default 64K,1M,8M)",
        value="LIST",
        parse=parse_block_sizes,
        default=DEFAULT_BLOCK_SIZES,
    ),
    Option(
        "--direct",
        "pdbench",
        "what is measured",
        "write and read without the page cache (O_DIRECT)",
        brief="without the page cache",
    ),
    Option(
        "--time",
        "pdbench",
        "what is measured",
        f"longest duration of each measurement (default {DEFAULT_SECONDS})",
        brief="longest duration of each measurement",
        value="SECONDS",
        parse=parse_seconds,
        default=DEFAULT_SECONDS,
    ),
    Option(
        "--repeat",
        "pdbench",
        "what is measured",
        f"make all measurements N times, and use the median of each (default {DEFAULT_REPEATS})",
        value="N",
        parse=parse_positive,
        default=DEFAULT_REPEATS,
    ),
    Option(
        "--in-flight",
        "pdbench",
        "operation",
        f"measure with 1, 4 and so on up to N operations in progress in each rank (default {DEFAULT_MAX_IN_FLIGHT})",
        value="N",
        parse=parse_in_flight_count,
    ),
    Option(
        "--svg",
        "pdbench",
        "charts",
        "draw the rates as charts in FILE, whose name ends in .svg",
        brief="draw the rates as charts in FILE",
        value="FILE",
        in_files=False,
    ),
)
"""The options that only ``pdbench`` has."""


class PdbenchCommandLine(ProgramCommandLine):
    """The command line of ``pdbench``."""

    option_tables = (PDBENCH_OPTIONS, COMMON_OPTIONS)
    work, done = "measure; 1, 2, 4 and so on up to N are tried", "measured"
    option_advice = ADVICE_OF_PDBENCH
    usage = "pdbench [options] DIR"
    description = """\
Measures the file system that DIR lies on: how many files a second it creates,
examines, opens, lists, renames and removes, in one directory and in several,
and how fast it writes and reads a file for each rank, and one file for all;
with 1, 2, 4 and so on up to all ranks, and with several operations in flight.
Reports which options are fastest. All tests run in a new directory below DIR,
which is removed at the end.
"""
    examples = """\
examples:
  pdbench /scratch
  pdbench -n 16 --svg scratch.svg /scratch
  pdbench --tests create,unlink --time 2 --files 100000 /scratch
  pdbench --tests write,read --size 4G --direct /scratch
  mpiexec -n 64 pdbench --json /scratch

exit status:
  0 all was measured; 1 a measurement failed; 2 wrong usage or refused,
  nothing was touched; 70 internal error; 75 stopped early
"""

    def load_command(self) -> ToolEntryPoint:
        from pcopy.launch.tool import ToolEntryPoint
        from pcopy.tools.bench import BENCH_TOOL, BenchJob

        return ToolEntryPoint(BENCH_TOOL, lambda words: self.parse_command_line(words, BenchJob))

    def arguments_from_options(
        self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]
    ) -> BenchArguments:
        from pcopy.tools.arguments import BenchArguments

        if len(paths) != 1:
            raise RequestRefused("one DIR expected: a directory on the file system to be measured; see pdbench --help")
        if paths[0] == b"":
            raise RequestRefused("DIR is the empty string: name a directory")
        refuse_invalid_file_names(values, "errors", "svg")
        if values.svg and not values.svg.endswith(".svg"):
            raise path_refused(values.svg.encode(errors="surrogateescape"), "the name must end in .svg", option="--svg")
        if values.blocks is DEFAULT_BLOCK_SIZES:
            values.blocks = tuple(block for block in DEFAULT_BLOCK_SIZES if block <= values.size) or (values.size,)
        if any(block > values.size for block in values.blocks):
            raise RequestRefused(
                f"--size {values.size}: less than the largest block ({max(values.blocks)} bytes); increase --size, or "
                "name smaller blocks with --blocks"
            )
        if values.direct and any(block % _MEMORY_PAGE_SIZE for block in values.blocks):
            raise RequestRefused(
                f"--direct: block sizes must be multiples of a memory page ({_MEMORY_PAGE_SIZE} bytes); see --blocks"
            )
        if values.in_flight is not None and values.in_flight > 1 and backend_name() != "c":
            raise RequestRefused(f"--in-flight {values.in_flight} needs the C backend, which is not in use here")
        most = values.in_flight or (DEFAULT_MAX_IN_FLIGHT if backend_name() == "c" else 1)
        return BenchArguments(
            paths[0],
            files=values.files,
            size=values.size,
            seconds=values.time,
            blocks=values.blocks,
            repeats=values.repeat,
            tests=values.tests,
            direct=values.direct,
            max_in_flight=most,
            ranks=values.ranks,
            dry_run=values.dry_run,
            svg=b"" if values.svg is None else values.svg.encode(errors="surrogateescape"),
            termination=values.termination,
            output=output_settings(values),
        )


PDBENCH = PdbenchCommandLine()
main = PDBENCH.main
