"""Options on stored jobs: where jobs are kept, and how they are resumed, listed, changed and discarded.

Rule: a resumed job copies what it was asked to copy at its start. Options on how it works may be given again with other
values. Options that would change the result in the destination are refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import at_least_0, at_least_1, rate, seconds, size, taking
from pcopy.cli.filter_options import age_of
from pcopy.errors import Refused
from pcopy.jobs.paths import absolute
from pcopy.text import shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.jobs.control import Change
    from pcopy.jobs.lifecycle import Keeping
    from pcopy.tools.arguments import Asked

STORES = ("auto", "pickle", "lmdb")
"""The values of ``--checkpoint-store``."""
NO_CHECKPOINT = b"none"
"""The value of ``--checkpoint`` with which no job is kept."""
USAGES = (
    *("pcopy --resume [JOB|DIR]", "pcopy --jobs", "pcopy --control JOB WORD..."),
    *("pcopy --discard JOB...", "pcopy --discard --older-than AGE"),
)
"""The forms of the command line that act on stored jobs."""

_TELLING = frozenset(("json", "quiet", "verbose", "config", "insecure_links"))
"""Options on output and configuration, which may be given with any of these commands."""
_WORDS = "bwlimit=RATE, oplimit=N, active=N, pause, resume"
_CHANGES: dict[str, Callable[[str], int]] = {"bwlimit": rate, "oplimit": at_least_0, "active": at_least_1}
"""The converters for the values of ``--control``, by their words."""
MAY_CHANGE = _TELLING | {
    *("ranks", "archive", "errors", "log", "max_errors", "progress", "progress_interval", "no_sync", "termination"),
    *("bwlimit", "oplimit", "force"),
    *("in_flight", "checkpoint_interval", "checkpoint_store", "spool", "memory", "metrics", "report"),
}
"""Options (attributes of the namespace) that may be given with ``--resume``: they do not affect the copies."""

BESIDE: dict[str, frozenset[str]] = {
    "resume": MAY_CHANGE,
    "jobs": _TELLING,
    "discard": _TELLING | {"older_than"},
    "control": _TELLING,
}
"""Options (attributes of the namespace) that may be given with each command on stored jobs."""


def add_job_options(parser: ArgumentParser) -> None:
    """Add the options on stored jobs to ``parser``."""
    from pcopy.jobs.lifecycle import Keeping
    from pcopy.tools.arguments import ALONE

    add = parser.add_argument_group("jobs that go on after an interruption").add_argument
    defaults = Keeping()
    add("--resume", metavar="JOB|DIR", nargs="?", type=taking(_path), const=ALONE, default=None,
        help="resume an unfinished job, by name or directory (default: the only one)")  # fmt: skip
    add("--jobs", action="store_true",
        help="list unfinished jobs, and the progress of running ones, but not those of --checkpoint DIR")  # fmt: skip
    add("--control", metavar="JOB", type=taking(_path), default=None,
        help="change a running job, by name or directory: bwlimit=RATE, oplimit=N, active=N (only N ranks take "
        "work), pause, resume; several words at once")  # fmt: skip
    add("--discard", metavar="JOB", nargs="*", action="extend", type=taking(_path), default=None,
        help="remove unfinished jobs, by their names or directories, and their temporary files")  # fmt: skip
    add("--checkpoint", metavar="DIR", type=taking(_path), default=None,
        help="store the job in this directory, and resume a job that is stored there; none: store no job "
        "(default: below ~/.local/state/pcopy, or $XDG_STATE_HOME/pcopy)")  # fmt: skip
    add("--checkpoint-interval", metavar="SECONDS", type=taking(seconds), default=defaults.interval,
        help="longest time between two checkpoints (default 60); the first come sooner")  # fmt: skip
    add("--checkpoint-store", choices=STORES, metavar="HOW", default=defaults.store,
        help="where waiting work is stored: auto (default: in memory; what does not fit goes to a database in "
        "--spool), pickle (the same with plain files), lmdb (in a database from the start)")  # fmt: skip
    add("--spool", metavar="DIR", type=taking(_path), default=None,
        help="directory on each host for waiting work that does not fit into memory")  # fmt: skip
    add("--memory", metavar="SIZE", type=taking(partial(size, what="work needs")), default=defaults.memory,
        help="bytes of waiting work that a host holds in memory")  # fmt: skip


def keeping_of(values: Namespace) -> Keeping:
    """Return the settings on checkpoints. Relative paths are resolved against the working directory."""
    from pcopy.jobs.lifecycle import Keeping

    is_named = values.checkpoint not in (None, NO_CHECKPOINT)
    return Keeping(
        directory=absolute(values.checkpoint) if is_named else b"",
        interval=values.checkpoint_interval,
        store=values.checkpoint_store,
        spool=absolute(values.spool) if values.spool else b"",
        memory=values.memory,
        at_start=is_named,
    )


def asked_of(
    values: Namespace, operands: Sequence[bytes], words: Sequence[str], make: Callable[[], ArgumentParser]
) -> Asked:
    """Return the command on stored jobs that the options give; it is empty if they ask for a copy.

    Args:
        operands: the arguments that are no options.
        words: the options as they were written.
        make: makes a new parser, with which ``words`` are parsed again.

    Raise ``Refused``, naming the option, for a combination that is not possible.
    """
    from pcopy.jobs.control import Change
    from pcopy.tools.arguments import Asked

    modes = [mode for mode in BESIDE if getattr(values, mode) not in (None, False)]
    if not modes:
        return Asked()
    mode = modes[0]
    if len(modes) > 1:
        raise Refused(f"--{mode} and --{modes[1]}: one at a time; see pcopy --help")
    discard, change = None, Change()
    if mode == "control":
        change, operands = change_of(operands), ()
    if mode == "discard":
        discard, operands = (*values.discard, *operands), ()
        if bool(discard) == (values.older_than is not None):
            raise Refused("--discard: name jobs, or give --older-than AGE, and not both; pcopy --jobs lists them")
    if operands:
        if mode == "resume":
            way = "write pcopy --resume, or pcopy --resume JOB"
            raise Refused(f"--resume takes a job, not SRC and DST: leave out {shown(operands[0])}; {way}")
        raise Refused(f"--{mode} takes no SRC or DST: leave out {shown(operands[0])}")
    given = _given(words, make())
    for name, option in given.items():
        if name != mode and name not in BESIDE[mode]:
            why = "a job goes on as it began" if mode == "resume" else "it copies nothing"
            raise Refused(f"{option} cannot be given with --{mode}: {why}; leave it out")
    older_than = None if values.older_than is None else age_of(values.older_than)
    return Asked(values.resume, values.jobs, discard, frozenset(given) - {mode}, older_than, values.control, change)


def change_of(words: Sequence[bytes]) -> Change:
    """Return the changes that the words of ``--control`` ask for.

    Raise ``Refused`` for an unknown word or a contradiction.
    """
    from pcopy.jobs.control import Change

    if not words:
        raise Refused(f"--control JOB: say what is to change: {_WORDS}")
    fields: dict[str, Any] = {}
    for word in map(os.fsdecode, words):
        name, equals, value = word.partition("=")
        try:
            field, meaning = name, 0
            if word in ("pause", "resume"):
                field, meaning = "paused", word == "pause"
            elif equals and name in _CHANGES:
                meaning = _CHANGES[name](value)
            else:
                raise ValueError(f"not one of {_WORDS}")
        except ValueError as error:
            raise Refused(f"--control: {shown(os.fsencode(word))}: {error}") from None
        if fields.setdefault(field, meaning) != meaning:
            raise Refused(f"--control: {shown(os.fsencode(word))}: contradicts another word; leave one of them out")
    return Change(**fields)


def _given(words: Sequence[str], parser: ArgumentParser) -> dict[str, str]:
    """Return the options that are given in ``words``: their attributes in the namespace, and how each was spelled.

    ``parser`` is modified and cannot be used afterwards.
    """
    import argparse

    written = {word.partition("=")[0] for word in words}
    spelling: dict[str, str] = {}
    for action in parser._actions:  # without defaults, only options that are given appear in the namespace
        action.default = argparse.SUPPRESS
        if action.dest not in spelling or written.intersection(action.option_strings):
            exact = [option for option in action.option_strings if option in written]
            spelling[action.dest] = (exact or list(action.option_strings))[-1]
    values = vars(parser.parse_known_args(words)[0])
    return {name: spelling[name] for name in values if name in spelling}  # set_defaults adds names without an option


def _path(text: str) -> bytes:
    """Return ``text`` as bytes. Raise ``ValueError`` if it is empty."""
    if not text:
        raise ValueError("the empty string names nothing")
    return os.fsencode(text)
