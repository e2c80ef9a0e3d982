"""Options that several programs have: what adds them to a parser, and what their values mean."""

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
INPLACE = ("parallel", "sequential")
"""Values of ``--inplace``; the first one is that of the option alone."""
INSECURE_LINKS = "--insecure-links"


def add_ranks(parser: Any, program: str, work: str, number: Any = at_least_1) -> None:
    """To a parser, or to a group of its options."""
    parser.add_argument("-n", "--ranks", metavar="N", type=taking(number), default=0,
        help=f"processes that {work} (default: the cores that {program} may use, at most 8)")  # fmt: skip


def add_in_flight(parser: Any) -> None:
    """As ``add_ranks``; ``in_flight_of`` has what it means."""
    parser.add_argument("--in-flight", metavar="N", type=taking(in_flight), default=0,
        help="operations that each process keeps under way, 1 to 64 (default: auto, more as long as they wait and "
        "that makes it faster)")  # fmt: skip


def add_limits(parser: Any, *, moves: bool = True) -> None:
    """As ``add_ranks``; a program that does not move the contents of files has no use for the first."""
    add = parser.add_argument
    if moves:
        add("--bwlimit", metavar="RATE", type=taking(rate), default=0,
            help="bytes a second that all ranks together move: a SIZE, as in 500M (default: no limit)")  # fmt: skip
    add("--oplimit", metavar="N", type=taking(at_least_0), default=0,
        help="operations on metadata a second, of all ranks together: items looked at, made, changed or removed "
        "(default 0: no limit)")  # fmt: skip


def in_flight_of(values: Namespace) -> int:
    """0: automatic. Raises ``Refused`` where only one can be under way, and more are asked for."""
    if values.in_flight > 1:
        from pcopy.fsio.kernel.choose import kernel_name

        if kernel_name() != "c":
            text = "needs the kernel in C, which is not in use here: leave it out"
            raise Refused(f"--in-flight {values.in_flight} {text}")
    return int(values.in_flight)


def add_digests(add: Any) -> None:
    """How what is read is digested; 0 and None where that is not said."""
    add("--hash", choices=ALGORITHMS, metavar="HOW", default=None,
        help=f"digest: {DEFAULT_ALGORITHM} (default; finds accidents) or blake3 (withstands forgery)")  # fmt: skip
    add("--block-size", metavar="SIZE", type=taking(block_size), default=0,
        help="unit of digests: a power of two of 64K or more (default 4M)")  # fmt: skip


def add_max_errors(parser: Any) -> None:
    parser.add_argument("--max-errors", metavar="N", type=taking(at_least_0), default=0,
        help="stop after N failed items, with status 75 (default 0: never)")  # fmt: skip


def add_termination(parser: Any) -> None:
    parser.add_argument("--termination", choices=("tree", "ring"), default="tree", metavar="HOW",
        help="how the ranks find out that all is done: tree (default) or ring")  # fmt: skip


def add_told(
    parser: ArgumentParser,
    *,
    quiet: str = "nothing at all when all goes well; errors always",
    json: str = "the summary as JSON",
    errors: bool = True,
    items: bool = False,
    each: str = "; -vv: what becomes of each item, too",
) -> None:
    """The options of ``telling_of``; not each program knows which items have failed, or tells of all ``items``."""
    add = parser.add_argument_group("what it tells").add_argument
    add("-q", "--quiet", action="store_true", help=quiet)
    add("-v", "--verbose", action="count", default=0,
        help=f"tell more: which kernel runs, when each phase begins{each if items else ''}")  # fmt: skip
    if errors:
        add("--errors", metavar="FILE", help="write all failures to FILE, one JSON object a line")
    if items:
        add("--log", metavar="FILE", help="write to FILE what becomes of each item, one JSON object a line")
    add("--json", action="store_true", help=json)
    add("--metrics", metavar="FILE",
        help="write what is counted to FILE, for Prometheus (the textfile collector of node_exporter), anew every 15 "
        "seconds or each --progress-interval")  # fmt: skip
    add("--report", metavar="FILE", action="append", default=[],
        help="write what was done, how fast and by whom to FILE when the job has ended; its name ends in .html (a "
        "page) or .json; may be given for both")  # fmt: skip
    add("--progress", choices=PROGRESS, metavar="HOW", nargs="?", const=PROGRESS[0], default=PROGRESS[0],
        help="auto (default: a bar on a terminal, lines elsewhere), bar, plain, json, none")  # fmt: skip
    add("--progress-interval", metavar="SECONDS", type=taking(seconds), help="time between two lines or redraws")
    add("--config", metavar="FILE", default=None,
        help="options from this YAML file, too, after those of /etc/pcopy.yaml and ~/.config/pcopy.yaml")  # fmt: skip
    add(INSECURE_LINKS, action="store_true",
        help="follow symbolic links of other users on the way to files that options name (default: only those of root "
        "and of the caller)")  # fmt: skip
    add("--show-config", action="store_true", help="print the options that count, and where each is set, and exit")
    add("--version", action="store_true", help="print the version and the kernel (c or python), and exit")
    add("-h", "--help", action="store_true", help="print this help and exit")


ENDINGS = (".json", ".html")
"""Of the files of ``--report``: they say what is in them."""


def telling_of(values: Namespace) -> Telling:
    """Raises ``Refused`` for what cannot be."""
    if values.metrics and getattr(values, "dry_run", False):
        raise Refused("--metrics tells what was done, and when that ended well; --dry-run does nothing: leave one out")
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
    """The file that an option names, empty if it was not given; raises ``Refused`` if that can be no file.

    Its name has to have one of the ``endings``.
    """
    if word is None:
        return b""
    _refuse_no_file(option, word)
    if not word.endswith(endings):
        raise Refused(f"--{option} {shown(os.fsencode(word))}: write a name that ends in {' or '.join(endings)}")
    return os.fsencode(word)


def refuse_what_names_no_file(values: Namespace, *names: str, directories: bool = True) -> None:
    """Raises ``Refused`` if one of these options can be no file; ``directories``: also if it is written as they are."""
    for name in names:
        _refuse_no_file(name, getattr(values, name), directories)


def _refuse_no_file(option: str, file: str | None, directories: bool = True) -> None:
    if file == "":
        raise Refused(f"--{option}: the empty string names no file")
    if file == "-":
        raise Refused(f"--{option} -: name a file; -vv shows what is done, --json prints the summary")
    if directories and file and os.path.basename(file) in {"", ".", ".."}:
        raise Refused(f"{shown(os.fsencode(file))}: is a directory, as it is written; name a file")


def refuse_useless_table(values: Namespace) -> None:
    """Raises ``Refused`` if there is a ``--stripe-table`` that nobody would read."""
    if values.stripe_table and values.stripe != "auto":
        raise Refused("--stripe-table goes with --stripe auto: write that, too")
