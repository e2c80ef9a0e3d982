"""Options that several programs share: functions that add them to a parser, and functions that convert their values."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import at_least_0, at_least_1, block_size, in_flight, rate, seconds, taking
from pcopy.errors import Refused
from pcopy.signature.algorithms import ALGORITHMS, DEFAULT_ALGORITHM
from pcopy.text import shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.report.screen import Telling

PROGRESS = ("auto", "bar", "plain", "json", "none")
"""The values of ``--progress``."""
INPLACE = ("parallel", "sequential")
"""The values of ``--inplace``. ``--inplace`` without a value means the first one."""
INSECURE_LINKS = "--insecure-links"


def add_ranks(parser: Any, program: str, work: str, number: Any = at_least_1) -> None:
    """Add ``-n`` to ``parser``, which is a parser or a group of its options.

    Args:
        program: the name of the program.
        work: the verb for the work of the processes, for the help text.
        number: the converter of the option's value.
    """
    parser.add_argument("-n", "--ranks", metavar="N", type=taking(number), default=0,
        help=f"processes that {work} (default: the cores that {program} may use, at most 8)")  # fmt: skip


def add_in_flight(parser: Any) -> None:
    """Add ``--in-flight`` to a parser or a group of options. ``in_flight_of`` returns its value."""
    parser.add_argument("--in-flight", metavar="N", type=taking(in_flight), default=0,
        help="file operations that each process runs at the same time, 1 to 64 (default: auto, which increases the "
        "number while operations wait and more of them are faster)")  # fmt: skip


def add_limits(parser: Any, *, moves: bool = True) -> None:
    """Add ``--bwlimit`` and ``--oplimit`` to a parser or a group of options.

    ``moves``: False for a program that does not copy the contents of files; it gets no ``--bwlimit``.
    """
    add = parser.add_argument
    if moves:
        add("--bwlimit", metavar="RATE", type=taking(rate), default=0,
            help="bytes per second of all ranks together: a SIZE, as in 500M (default: no limit)")  # fmt: skip
    add("--oplimit", metavar="N", type=taking(at_least_0), default=0,
        help="metadata operations per second of all ranks together: items examined, created, changed or removed "
        "(default 0: no limit)")  # fmt: skip


def in_flight_of(values: Namespace) -> int:
    """Return the value of ``--in-flight``; 0 means automatic.

    Raise ``Refused`` if more than 1 is requested without the C backend: the Python backend runs one operation at a
    time.
    """
    if values.in_flight > 1:
        from pcopy.fsio.kernel.choose import kernel_name

        if kernel_name() != "c":
            text = "needs the C backend, which is not in use here: leave it out"
            raise Refused(f"--in-flight {values.in_flight} {text}")
    return int(values.in_flight)


def add_digests(add: Any) -> None:
    """Add ``--hash`` (None if not given) and ``--block-size`` (0 if not given): how data that is read is digested."""
    add("--hash", choices=ALGORITHMS, metavar="HOW", default=None,
        help=f"digest: {DEFAULT_ALGORITHM} (default; detects accidents) or blake3 (resists forgery)")  # fmt: skip
    add("--block-size", metavar="SIZE", type=taking(block_size), default=0,
        help="unit of digests: a power of two of 64K or more (default 4M)")  # fmt: skip


def add_max_errors(parser: Any) -> None:
    """Add ``--max-errors`` to a parser or a group of options."""
    parser.add_argument("--max-errors", metavar="N", type=taking(at_least_0), default=0,
        help="stop after N failed items, with status 75 (default 0: never)")  # fmt: skip


def add_termination(parser: Any) -> None:
    """Add ``--termination`` to a parser or a group of options."""
    parser.add_argument("--termination", choices=("tree", "ring"), default="tree", metavar="HOW",
        help="how the ranks detect that all work is done: tree (default) or ring")  # fmt: skip


def add_told(
    parser: ArgumentParser,
    *,
    quiet: str = "print nothing at all when all goes well; errors always",
    json: str = "the summary as JSON",
    errors: bool = True,
    items: bool = False,
    each: str = "; -vv: the outcome of each item, too",
) -> None:
    """Add the options on output (screen, logs, reports, metrics, configuration) that ``telling_of`` converts.

    Args:
        quiet: the help text of ``--quiet``.
        json: the help text of ``--json``.
        errors: True if the program can list the items that failed (``--errors``).
        items: True if the program can report the outcome of each item (``--log``).
        each: what the help text of ``--verbose`` says about items.
    """
    add = parser.add_argument_group("output").add_argument
    add("-q", "--quiet", action="store_true", help=quiet)
    add("-v", "--verbose", action="count", default=0,
        help=f"print more: which backend runs, when each phase begins{each if items else ''}")  # fmt: skip
    if errors:
        add("--errors", metavar="FILE", help="write all failures to FILE, one JSON object a line")
    if items:
        add("--log", metavar="FILE", help="write the outcome of each item to FILE, one JSON object a line")
    add("--json", action="store_true", help=json)
    add("--metrics", metavar="FILE",
        help="write the counters to FILE, for Prometheus (the textfile collector of node_exporter), every 15 seconds "
        "or each --progress-interval")  # fmt: skip
    add("--report", metavar="FILE", action="append", default=[],
        help="write a report to FILE when the job has ended: what was done and how fast; its name ends in .html (a "
        "page) or .json; may be given for both")  # fmt: skip
    add("--progress", choices=PROGRESS, metavar="HOW", nargs="?", const=PROGRESS[0], default=PROGRESS[0],
        help="auto (default: a bar on a terminal, lines elsewhere), bar, plain, json, none")  # fmt: skip
    add("--progress-interval", metavar="SECONDS", type=taking(seconds), help="time between two lines or redraws")
    add("--config", metavar="FILE", default=None,
        help="read options from this YAML file, too, after /etc/pcopy.yaml and ~/.config/pcopy.yaml")  # fmt: skip
    add(INSECURE_LINKS, action="store_true",
        help="follow symbolic links of other users on the way to files that options name (default: only those of root "
        "and of the caller)")  # fmt: skip
    add("--show-config", action="store_true", help="print the options in effect, and where each is set, and exit")
    add("--version", action="store_true", help="print the version and the kernel (c or python), and exit")
    add("-h", "--help", action="store_true", help="print this help and exit")


ENDINGS = (".json", ".html")
"""The valid endings of the file names of ``--report``: they select the format."""


def telling_of(values: Namespace) -> Telling:
    """Return the settings of the program's output. Raise ``Refused`` for values and combinations that are invalid."""
    if values.metrics and getattr(values, "dry_run", False):
        raise Refused("--metrics records what a run has done, and --dry-run does nothing: leave one out")
    from pcopy.report.screen import Telling

    errors, log = getattr(values, "errors", None), getattr(values, "log", None)
    return Telling(
        quiet=values.quiet,
        progress=values.progress,
        interval=values.progress_interval,
        errors=None if errors is None else os.fsencode(errors),
        json=values.json,
        verbose=values.verbose,
        metrics=_written_to("metrics", values.metrics),
        log=None if log is None else os.fsencode(log),
        reports=tuple(_written_to("report", word, ENDINGS) for word in values.report),
        filters=getattr(values, "filter_origins", ()),
    )


def _written_to(option: str, word: str | None, endings: tuple[str, ...] = ("",)) -> bytes:
    """Return the path of the output file ``word``, the value of ``--option``; empty if the option is not given.

    Raise ``Refused`` if the value is not the name of a file or has none of the ``endings``.
    """
    if word is None:
        return b""
    _refuse_no_file(option, word)
    if not word.endswith(endings):
        raise Refused(f"--{option} {shown(os.fsencode(word))}: write a name that ends in {' or '.join(endings)}")
    return os.fsencode(word)


def refuse_what_names_no_file(values: Namespace, *names: str, directories: bool = True) -> None:
    """Raise ``Refused`` if the value of one of the options ``names`` cannot be the name of a file (empty or ``-``).

    ``directories``: True to refuse also a path that is spelled as a directory, such as ``dir/`` or ``..``.
    """
    for name in names:
        _refuse_no_file(name, getattr(values, name), directories)


def _refuse_no_file(option: str, file: str | None, directories: bool = True) -> None:
    """Raise ``Refused`` if ``file``, the value of ``--option``, cannot be the name of a file. None means no value."""
    if file == "":
        raise Refused(f"--{option}: the empty string names no file")
    if file == "-":
        raise Refused(f"--{option} -: name a file; -vv shows what is done, --json prints the summary")
    if directories and file and os.path.basename(file) in {"", ".", ".."}:
        raise Refused(f"{shown(os.fsencode(file))}: is a directory by its spelling; name a file")


def refuse_useless_table(values: Namespace) -> None:
    """Raise ``Refused`` if ``--stripe-table`` is given without ``--stripe auto``, which alone reads the table."""
    if values.stripe_table and values.stripe != "auto":
        raise Refused("--stripe-table goes with --stripe auto: write that, too")
