"""Options that several programs share: functions that add them to a parser, and functions that convert their values."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import (
    converter_for_argparse,
    parse_block_size,
    parse_in_flight_count,
    parse_non_negative,
    parse_positive,
    parse_rate,
    parse_seconds,
)
from pcopy.errors import RequestRefused
from pcopy.signature.algorithms import ALGORITHM_NAMES, DEFAULT_ALGORITHM
from pcopy.text import printable_path

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.report.screen import OutputOptions

PROGRESS_CHOICES = ("auto", "bar", "plain", "json", "none")
"""The values of ``--progress``."""
INPLACE_CHOICES = ("parallel", "sequential")
"""The values of ``--inplace``; the first one is used if the user writes ``--inplace`` without a value."""
DRY_RUN_CHOICES = ("changes", "all")
"""The values of ``--dry-run`` of pcopy; the first one is used if the user writes ``--dry-run`` without a value."""
INSECURE_LINKS_OPTION = "--insecure-links"


def add_ranks_option(parser: Any, program: str, work: str, number: Any = parse_positive) -> None:
    """Add ``-n`` (``--ranks``), the number of processes, to a parser or a group of options.

    Args:
        program: the name of the program.
        work: the verb for the work of the processes, for the help text.
        number: converts the text of the value to a number.
    """
    parser.add_argument("-n", "--ranks", metavar="N", type=converter_for_argparse(number), default=0,
        help=f"processes that {work} (default: the cores that {program} may use, at most 8)")  # fmt: skip


def add_in_flight_option(parser: Any) -> None:
    """Add ``--in-flight`` (operations that a process runs at the same time) to a parser or a group of options.

    After parsing, ``checked_in_flight_count`` returns the value of the option.
    """
    parser.add_argument("--in-flight", metavar="N", type=converter_for_argparse(parse_in_flight_count), default=0,
        help="file operations that each process runs at the same time, 1 to 64 (default: auto, which raises the number "
        "as long as that makes the job faster)")  # fmt: skip


def add_limit_options(parser: Any, *, has_contents: bool = True) -> None:
    """Add ``--bwlimit`` and ``--oplimit`` (limits of bytes and of operations per second) to a parser or a group of
    options.

    ``has_contents``: False for a program that does not copy the contents of files; it gets no ``--bwlimit``.
    """
    add = parser.add_argument
    if has_contents:
        add("--bwlimit", metavar="RATE", type=converter_for_argparse(parse_rate), default=0,
            help="bytes per second of all ranks together: a SIZE, as in 500M (default: no limit)")  # fmt: skip
    add("--oplimit", metavar="N", type=converter_for_argparse(parse_non_negative), default=0,
        help="metadata operations per second of all ranks together: items examined, created, changed or removed "
        "(default 0: no limit)")  # fmt: skip


def checked_in_flight_count(values: Namespace) -> int:
    """Return the value of ``--in-flight``; 0 stands for ``auto``.

    Raise ``RequestRefused`` if more than 1 is requested and file operations are not performed by the C backend: the
    Python backend runs one operation at a time.
    """
    if values.in_flight > 1:
        from pcopy.fsio.backend.choose import backend_name

        if backend_name() != "c":
            text = "needs the C backend, which is not in use here: leave it out"
            raise RequestRefused(f"--in-flight {values.in_flight} {text}")
    return int(values.in_flight)


def add_digest_options(add: Any) -> None:
    """Add ``--hash`` and ``--block-size``, which say how digests are computed, to a parser.

    ``add`` is the method ``add_argument`` of the parser or of a group of its options. If the user does not give the
    options, their values are None and 0.
    """
    add("--hash", choices=ALGORITHM_NAMES, metavar="HOW", default=None,
        help=f"digest: {DEFAULT_ALGORITHM} (default; detects accidents) or blake3 (resists forgery)")  # fmt: skip
    add("--block-size", metavar="SIZE", type=converter_for_argparse(parse_block_size), default=0,
        help="unit of digests: a power of two of 64K or more (default 4M)")  # fmt: skip


def add_max_errors_option(parser: Any) -> None:
    """Add ``--max-errors`` (stop after so many failed items) to a parser or a group of options."""
    parser.add_argument("--max-errors", metavar="N", type=converter_for_argparse(parse_non_negative), default=0,
        help="stop after N failed items, with status 75 (default 0: never)")  # fmt: skip


def add_termination_option(parser: Any) -> None:
    """Add ``--termination`` (how the ranks find out that all work is done) to a parser or a group of options."""
    parser.add_argument("--termination", choices=("tree", "ring"), default="tree", metavar="HOW",
        help="how the ranks detect that all work is done: tree (default) or ring")  # fmt: skip


def add_output_options(
    parser: ArgumentParser,
    *,
    quiet: str = "print nothing if all goes well; errors are always printed",
    json: str = "the summary as JSON",
    has_errors_file: bool = True,
    has_item_log: bool = False,
    verbose: str = "",
) -> None:
    """Add the options about output (such as ``--quiet``) and configuration files to ``parser``.

    After parsing, ``output_settings`` returns the values of the options about output.

    Args:
        quiet: the help text of ``--quiet``.
        json: the help text of ``--json``.
        has_errors_file: True if the program can list the items that failed (``--errors``).
        has_item_log: True if the program can report the outcome of each item (``--log``).
        verbose: the help text of ``--verbose``, if it differs from that of most programs.
    """
    add = parser.add_argument_group("output").add_argument
    add("-q", "--quiet", action="store_true", help=quiet)
    add(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help=verbose
        or "print more: which backend runs, when each phase begins"
        + (", and each item that is changed; -vv: the other items, too" if has_item_log else ""),
    )
    if has_errors_file:
        add("--errors", metavar="FILE", help="write all failures to FILE, one JSON object a line")
    if has_item_log:
        add("--log", metavar="FILE", help="write the outcome of each item to FILE, one JSON object a line")
    add("--json", action="store_true", help=json)
    add("--metrics", metavar="FILE",
        help="write the counters to FILE, for Prometheus (the textfile collector of node_exporter), every 15 seconds "
        "or, if given, every --progress-interval")  # fmt: skip
    add("--report", metavar="FILE", action="append", default=[],
        help="write a report to FILE when the job has ended: what was done and how fast; FILE ends in .html (a "
        "page) or .json; may be given twice, for both")  # fmt: skip
    add("--progress", choices=PROGRESS_CHOICES, metavar="HOW", nargs="?", const=PROGRESS_CHOICES[0],
    default=PROGRESS_CHOICES[0],
        help="auto (default: a bar on a terminal, lines elsewhere), bar, plain, json, none")  # fmt: skip
    add(
        "--progress-interval",
        metavar="SECONDS",
        type=converter_for_argparse(parse_seconds),
        help="time between progress lines or redraws",
    )
    add("--config", metavar="FILE", default=None,
        help="read options from this YAML file, too, after /etc/pcopy.yaml and ~/.config/pcopy.yaml")  # fmt: skip
    add(INSECURE_LINKS_OPTION, action="store_true",
        help="in the paths of files that options name, follow symbolic links of other users, too (default: only links "
        "of root and of the caller)")  # fmt: skip
    add("--show-config", action="store_true", help="print the options in effect, and where each is set, and exit")
    add("--version", action="store_true", help="print the version and the backend (c or python), and exit")
    add("-h", "--help", action="store_true", help="print this help and exit")


REPORT_SUFFIXES = (".json", ".html")
"""The valid endings of the file names of ``--report``: they select the format."""


def output_settings(values: Namespace) -> OutputOptions:
    """Return the settings of the program's output, from the parsed options ``values``.

    Raise ``RequestRefused`` for an invalid file name, or ``--metrics`` with ``--dry-run``.
    """
    if values.metrics and getattr(values, "dry_run", False):
        raise RequestRefused("--metrics records what a run has done, and --dry-run does nothing: leave one out")
    from pcopy.report.screen import OutputOptions

    errors, log = getattr(values, "errors", None), getattr(values, "log", None)
    return OutputOptions(
        quiet=values.quiet,
        progress=values.progress,
        interval=values.progress_interval,
        errors=None if errors is None else os.fsencode(errors),
        json=values.json,
        verbose=2 if getattr(values, "dry_run", None) == "all" else values.verbose,
        metrics=_checked_output_path("metrics", values.metrics),
        log=None if log is None else os.fsencode(log),
        reports=tuple(_checked_output_path("report", word, REPORT_SUFFIXES) for word in values.report),
        filter_origins=getattr(values, "filter_origins", ()),
    )


def _checked_output_path(option: str, word: str | None, endings: tuple[str, ...] = ("",)) -> bytes:
    """Return the path of an output file; empty if its option is not given.

    Args:
        option: the option, without dashes.
        word: its value; None if it is not given.
        endings: the endings that the name of the file may have.

    Raise ``RequestRefused`` if the value cannot be an output file, or has none of the ``endings``.
    """
    if word is None:
        return b""
    _refuse_invalid_file_name(option, word)
    if not word.endswith(endings):
        raise RequestRefused(
            f"--{option} {printable_path(os.fsencode(word))}: the name must end in {' or '.join(endings)}"
        )
    return os.fsencode(word)


def refuse_invalid_file_names(values: Namespace, *names: str, refuse_directories: bool = True) -> None:
    """Check the options ``names``, whose values are names of output files. Raise ``RequestRefused`` if a value is empty
    or ``-``.

    ``refuse_directories``: True to refuse also a path that is spelled as a directory, such as ``dir/`` or ``..``.
    """
    for name in names:
        _refuse_invalid_file_name(name, getattr(values, name), refuse_directories)


def _refuse_invalid_file_name(option: str, file: str | None, directories: bool = True) -> None:
    """Raise ``RequestRefused`` if ``file``, the value of an option, cannot be an output file: empty or ``-``.

    Args:
        option: the option, without dashes.
        file: its value; None if the option is not given.
        directories: True to refuse also a path that is spelled as a directory, such as ``dir/`` or ``..``.
    """
    if file == "":
        raise RequestRefused(f"--{option}: the empty string names no file")
    if file == "-":
        raise RequestRefused(
            f"--{option} -: standard output is not possible: name a file; "
            "-vv shows what is done, --json prints the summary"
        )
    if directories and file and os.path.basename(file) in {"", ".", ".."}:
        raise RequestRefused(f"{printable_path(os.fsencode(file))}: is a directory by its spelling; name a file")


def refuse_unused_stripe_table(values: Namespace) -> None:
    """Raise ``RequestRefused`` if ``--stripe-table`` is given without ``--stripe auto``: only that uses the table."""
    if values.stripe_table and values.stripe != "auto":
        raise RequestRefused("--stripe-table can only be given with --stripe auto: give that option, too")
