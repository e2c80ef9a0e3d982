"""The options that several programs have, the groups of the help, and functions that check and convert the values."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pcopy.cli.argument_types import (
    EVERY_PROGRAM,
    Option,
    parse_block_size,
    parse_in_flight_count,
    parse_non_negative,
    parse_positive,
    parse_ranks,
    parse_rate,
    parse_seconds,
)
from pcopy.errors import RequestRefused, path_refused
from pcopy.fsio.preserve import PRESERVABLE_METADATA
from pcopy.signature.algorithms import ALGORITHM_NAMES, DEFAULT_ALGORITHM
from pcopy.tasks.base.job import Options
from pcopy.text import printable_path

if TYPE_CHECKING:
    from argparse import Namespace

    from pcopy.report.screen import OutputOptions

PROGRESS_CHOICES = ("auto", "bar", "plain", "json", "none")
"""The values of ``--progress``."""
INPLACE_CHOICES = ("parallel", "sequential")
"""The values of ``--inplace``; the first one is used if the user writes ``--inplace`` without a value."""
DRY_RUN_CHOICES = ("changes", "all")
"""The values of ``--dry-run``; the first one is used if the user writes ``--dry-run`` without a value."""
_DIFFERENCE_WORDS = (
    "A line has the action and, for an existing item, what differs: type, size, time, mode, owner, acl, xattr, "
    "content, link (not yet a hard link)"
)
"""Explanation, for the help, of the lines of ``--dry-run`` (``pcopy.tasks.base.actions.DifferingProperty``)."""
_NO_VALUE: dict[str, object] = {"value": "", "choices": (), "nargs": "", "const": None}
"""Fields of an option that has a value in other programs and is a flag in this one."""
INSECURE_LINKS_OPTION = "--insecure-links"
STOP_AT_EOF_OPTION = "--stop-at-eof"


OPTION_GROUPS: dict[str, str] = {
    "common options": "",
    "what to do": "",
    "what is removed": "",
    "what is changed": "",
    "what is measured": "",
    "what is compared": "",
    "which properties of A and B are compared": "LIST: some of type, size, mtime, mode, owner, acl, xattr, content, "
    "all; separated by commas",
    "what is walked": "",
    "what is written": "",
    "which items are {done}": "P: a pattern as in .gitignore, for paths below {operand}; the last one that matches "
    "decides",
    "mirroring": "for a SRC that is a directory with a trailing slash, or with -T",
    "compressing": "regular files are written in another form, under another name",
    "what copies keep": f"LIST: some of {', '.join(PRESERVABLE_METADATA)}, all; separated by commas",
    "verification": "",
    "resuming jobs after an interruption": "",
    "operation": "",
    "output": "",
    "tuning": "",
    "Lustre": "where DST is on another file system, these have no effect",
    "charts": "",
}
"""The groups of options in the help of all programs, in their order, and the text below their titles."""
SIZE_TEXT = "SIZE: 64K, 4MiB, 1.5G (powers of 1024), 10MB (powers of 1000)"
"""The explanation below the title of the first group with an option that takes a size."""
_COPIES = "pcopy psync"
_WITH_ALL_COMMANDS = "resume jobs discard control"
_WITH_RANKS = "pcopy psync pverify prm pstripe ptar pdbench pwalk pchmod"
_ALL_BUT_PVERIFY = "pcopy psync prm pstripe ptar pbcast pdbench pwalk pchmod"
_IN_TUNING = {_COPIES: {"group": "tuning"}}

COMMON_OPTIONS: tuple[Option, ...] = (
    Option(
        "-n --ranks",
        _WITH_RANKS,
        "operation",
        "processes that {work} (default: the cores that {program} may use, at most 8)",
        brief="processes (default: the cores, at most 8)",
        value="N",
        parse=parse_positive,
        default=0,
        with_commands="resume",
        variants={_COPIES: {"group": "common options", "parse": parse_ranks}},
    ),
    Option(
        "--dry-run",
        "pcopy psync prm pstripe ptar pbcast pdbench pchmod",
        "what is {done}",
        "list what would be {done} (with WHICH all: also the rest), then how much; change nothing",
        brief="change nothing; show what would be done",
        value="WHICH",
        choices=DRY_RUN_CHOICES,
        nargs="?",
        const=DRY_RUN_CHOICES[0],
        in_files=False,
        excludes="metrics",
        variants={
            _COPIES: {
                "group": "common options",
                "help": "change nothing; list the items that would be changed (with WHICH all: all items), then "
                f"totals, sizes, free space. {_DIFFERENCE_WORDS}",
            },
            "pstripe": {
                "group": "what is changed",
                "help": "list the files that would get another layout, with the old and the new one (with WHICH all: "
                "all files), then totals; change nothing",
            },
            "ptar": {
                "group": "what to do",
                "help": "-c and -x: list what would be archived or unpacked (with WHICH all: also what is left out); "
                f"change nothing. {_DIFFERENCE_WORDS}",
                "modes": "create extract",
            },
            "pbcast": {
                "group": "operation",
                "help": "check that each host has DIR and enough free space in it; write nothing",
                **_NO_VALUE,
            },
            "pdbench": {
                "help": "print what would be measured, and how much would be written; write nothing",
                **_NO_VALUE,
            },
            "pchmod": {
                "help": "list the items that would be changed (with WHICH all: all items), and how: mode, owner, acl; "
                "change nothing",
            },
        },
    ),
    Option(
        "-r -R --recursive",
        "pverify pstripe pchmod",
        "what is {done}",
        "no effect: trees are {done} by default",
        is_listed=False,
        variants={
            "pverify": {"help": "no effect: trees are read whole by default"},
            "pstripe": {"group": "what is changed"},
            "pchmod": {"words": "-R --recursive"},
        },
    ),
    Option(
        "--hash",
        "pcopy psync pverify ptar",
        "what is {done}",
        f"digest: {DEFAULT_ALGORITHM} (default; detects accidents) or blake3 (resists forgery)",
        value="HOW",
        choices=ALGORITHM_NAMES,
        variants={
            _COPIES: {
                "group": "verification",
                "help": "digest while copying: xxh3-128 (detects accidents; the default where a digest is needed), "
                "blake3 (resists forgery), none (the default elsewhere)",
                "choices": (*ALGORITHM_NAMES, "none"),
                "excludes": {"none": "verify repair signature manifest"},
                "field": "hash",
            },
            "ptar": {"group": "what to do", "modes": "create list"},
        },
    ),
    Option(
        "--block-size",
        "pcopy psync pverify ptar",
        "what is {done}",
        "unit of digests: a power of two of 64K or more (default 4M)",
        value="SIZE",
        parse=parse_block_size,
        default=0,
        variants={
            _COPIES: {"group": "tuning", "default": Options().block_size, "field": "block_size"},
            "ptar": {"group": "what to do", "modes": "create list"},
        },
    ),
    Option(
        "--bwlimit",
        "pcopy psync pverify ptar pbcast",
        "operation",
        "bytes per second of all ranks together: a SIZE, as in 500M (default: no limit)",
        brief="bytes per second of all ranks together, as in 500M",
        value="RATE",
        parse=parse_rate,
        default=0,
        with_commands="resume",
        field="bwlimit",
        variants={
            **_IN_TUNING,
            "ptar": {"brief": ""},
            "pbcast": {"help": "bytes per second that each host receives: a SIZE, as in 500M (default: no limit)"},
        },
    ),
    Option(
        "--oplimit",
        "pcopy psync pverify prm ptar pwalk pchmod",
        "operation",
        "metadata operations per second of all ranks together: items examined, created, changed or removed "
        "(default 0: no limit)",
        value="N",
        parse=parse_non_negative,
        default=0,
        with_commands="resume",
        field="oplimit",
        variants=_IN_TUNING,
    ),
    Option(
        "--in-flight",
        "pcopy psync pverify prm pstripe ptar pwalk pchmod",
        "operation",
        "file operations that each process runs at the same time, 1 to 64 (default: auto, which raises the number "
        "as long as that makes the job faster)",
        value="N",
        parse=parse_in_flight_count,
        offered=("auto",),
        default=0,
        with_commands="resume",
        variants=_IN_TUNING,
    ),
    Option(
        "--max-errors",
        "pcopy psync prm pstripe ptar pwalk pchmod",
        "operation",
        "stop after N failed items, with status 75 (default 0: never)",
        value="N",
        parse=parse_non_negative,
        default=0,
        with_commands="resume",
        field="max_errors",
        variants=_IN_TUNING,
    ),
    Option(
        "--termination",
        _ALL_BUT_PVERIFY,
        "operation",
        "how the ranks detect that all work is done: tree (default) or ring",
        value="HOW",
        choices=("tree", "ring"),
        default="tree",
        with_commands="resume",
        field="termination",
        variants=_IN_TUNING,
    ),
    Option(
        "-q --quiet",
        EVERY_PROGRAM,
        "output",
        "print nothing if all goes well; errors are always printed",
        brief="print nothing if all goes well",
        with_commands=_WITH_ALL_COMMANDS,
        variants={
            "pverify": {
                "brief": "no progress; show only errors and differences",
                "help": "no progress; errors and differences are shown all the same",
            }
        },
    ),
    Option(
        "-v --verbose",
        EVERY_PROGRAM,
        "output",
        "print more: which backend runs, when each phase begins",
        brief="print more; twice: still more",
        action="count",
        default=0,
        with_commands=_WITH_ALL_COMMANDS,
        variants={
            "pcopy psync prm pchmod": {
                "help": "print more: which backend runs, when each phase begins, and each item that is changed; -vv: "
                "the other items, too"
            },
            "ptar": {
                "help": "-c and -x: print the name of each member on standard output as it is done, and the summary on "
                "standard error; -vv: also which backend runs, and when each phase begins"
            },
        },
    ),
    Option(
        STOP_AT_EOF_OPTION,
        EVERY_PROGRAM,
        "operation",
        "stop in order, as after SIGTERM, when standard input ends or holds data: for programs that start this one "
        "with a pipe, which the system closes when they end",
        in_files=False,
        with_commands="resume",
        variants=_IN_TUNING,
    ),
    Option(
        "--errors",
        EVERY_PROGRAM,
        "output",
        "write all failures to FILE, one JSON object a line",
        value="FILE",
        with_commands="resume",
        variants={"ptar": {"modes": "create extract"}},
    ),
    Option(
        "--log",
        "pcopy psync prm ptar pchmod",
        "output",
        "write the outcome of each item to FILE, one JSON object a line",
        value="FILE",
        with_commands="resume",
        variants={"ptar": {"modes": "create extract"}},
    ),
    Option(
        "--json",
        EVERY_PROGRAM,
        "output",
        "the summary as JSON",
        with_commands=_WITH_ALL_COMMANDS,
        variants={"pverify": {"help": "differences and the summary as JSON, an object a line"}},
    ),
    Option(
        "--metrics",
        EVERY_PROGRAM,
        "output",
        "write the counters to FILE, for Prometheus (the textfile collector of node_exporter), every 15 seconds or, "
        "if given, every --progress-interval",
        value="FILE",
        with_commands="resume",
    ),
    Option(
        "--report",
        EVERY_PROGRAM,
        "output",
        "write a report to FILE when the job has ended: what was done and how fast; FILE ends in .html (a page) or "
        ".json; may be given twice, for both",
        brief="write a report to FILE, which ends in .html or .json",
        value="FILE",
        action="append",
        default=[],
        with_commands="resume",
    ),
    Option(
        "--progress",
        EVERY_PROGRAM,
        "output",
        "auto (default: a bar on a terminal, lines elsewhere), bar, plain, json, none",
        value="HOW",
        choices=PROGRESS_CHOICES,
        nargs="?",
        const=PROGRESS_CHOICES[0],
        default=PROGRESS_CHOICES[0],
        excludes={"json": "quiet"},
        with_commands="resume",
    ),
    Option(
        "--progress-interval",
        EVERY_PROGRAM,
        "output",
        "time between progress lines or redraws",
        value="SECONDS",
        parse=parse_seconds,
        with_commands="resume",
    ),
    Option(
        "--config",
        EVERY_PROGRAM,
        "output",
        "read options from this YAML file, too, after /etc/pcopy.yaml and ~/.config/pcopy.yaml",
        value="FILE",
        in_files=False,
        with_commands=_WITH_ALL_COMMANDS,
    ),
    Option(
        INSECURE_LINKS_OPTION,
        EVERY_PROGRAM,
        "output",
        "in the paths of files that options name, follow symbolic links of other users, too (default: only links of "
        "root and of the caller)",
        in_files=False,
        with_commands=_WITH_ALL_COMMANDS,
    ),
    Option(
        "--show-config",
        EVERY_PROGRAM,
        "output",
        "print the options in effect, and where each is set, and exit",
        in_files=False,
    ),
    Option(
        "--version",
        EVERY_PROGRAM,
        "output",
        "print the version and the backend (c or python), and exit",
        in_files=False,
    ),
    Option(
        "-h --help",
        EVERY_PROGRAM,
        "output",
        "-h: print one page of common options; --help: print this help",
        brief="print this page; --help: all options",
        in_files=False,
    ),
)
"""The options that several programs have, except those that select items."""


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
        raise path_refused(os.fsencode(file), "is a directory by its spelling; name a file")


def refuse_unused_stripe_table(values: Namespace) -> None:
    """Raise ``RequestRefused`` if ``--stripe-table`` is given without ``--stripe auto``: only that uses the table."""
    if values.stripe_table and values.stripe != "auto":
        raise RequestRefused("--stripe-table can only be given with --stripe auto: give that option, too")
