"""Options on stored jobs: where their progress is recorded, and how they are resumed, listed, changed and discarded.

Rule: a resumed job copies the same items in the same way as when it began. Options that affect only speed and output
may have other values. An option that would change the result in the destination is refused, with a message that names
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import (
    Option,
    parse_non_negative,
    parse_positive,
    parse_positive_size,
    parse_rate,
    parse_seconds,
)
from pcopy.cli.filter_options import age_in_seconds
from pcopy.errors import RequestRefused
from pcopy.jobs.paths import absolute_path
from pcopy.text import printable_path

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.jobs.control import ControlRequest
    from pcopy.jobs.lifecycle import CheckpointSettings
    from pcopy.tools.arguments import StoredJobRequest

CHECKPOINT_STORE_CHOICES = ("auto", "pickle", "lmdb")
"""The values of ``--checkpoint-store``."""
NO_CHECKPOINT_WORD = b"none"
"""The value of ``--checkpoint`` with which no progress is recorded, so that the job cannot be resumed."""
JOB_COMMAND_USAGES = (
    *("pcopy --resume [JOB|DIR]", "pcopy --jobs", "pcopy --control JOB WORD..."),
    *("pcopy --discard JOB...", "pcopy --discard --older-than AGE"),
)
"""The forms of the command line that act on stored jobs."""

JOB_COMMANDS = ("resume", "jobs", "discard", "control")
"""The commands on stored jobs: the options that request them, as attributes of argparse's namespace."""
_CONTROL_WORDS = "bwlimit=RATE, oplimit=N, active=N, pause, resume"
_CONTROL_CONVERTERS: dict[str, Callable[[str], int]] = {
    "bwlimit": parse_rate,
    "oplimit": parse_non_negative,
    "active": parse_positive,
}
"""The words of ``--control`` that have a value (``WORD=VALUE``), with the function that converts the value."""


def options_with_command(options: Sequence[Option], command: str) -> frozenset[str]:
    """Return those of ``options`` that may be given with a ``command`` on stored jobs (one of ``JOB_COMMANDS``), as
    attributes of argparse's namespace.
    """
    return frozenset(option.attribute for option in options if command in option.with_commands.split())


def changeable_fields(options: Sequence[Option]) -> dict[str, str]:
    """Return those of ``options`` whose stored value ``--resume`` replaces: the attribute of argparse's namespace, and
    the field of the job's options.
    """
    found = [option for option in options if option.field and "resume" in option.with_commands.split()]
    return {option.attribute: option.field for option in found}


def checkpoint_settings(values: Namespace) -> CheckpointSettings:
    """Return how and where the job records its progress, from the parsed options ``values``. All paths are absolute."""

    from pcopy.jobs.lifecycle import CheckpointSettings

    if values.checkpoint_store == "lmdb":
        import lmdb  # noqa: F401 (ImportError is reported before the job begins)
    is_named = values.checkpoint not in (None, NO_CHECKPOINT_WORD)
    return CheckpointSettings(
        directory=absolute_path(values.checkpoint) if is_named else b"",
        interval=values.checkpoint_interval,
        store=values.checkpoint_store,
        spool=absolute_path(values.spool) if values.spool else b"",
        memory=values.memory,
        durable_at_start=is_named,
    )


def requested_job_command(
    values: Namespace,
    operands: Sequence[bytes],
    words: Sequence[str],
    new_parser: Callable[[], ArgumentParser],
    options: Sequence[Option],
) -> StoredJobRequest:
    """Return the command on stored jobs that the options request (such as ``--resume``); an empty
    ``StoredJobRequest()`` if they request a copy.

    Args:
        values: the parsed options.
        operands: the arguments that are no options.
        words: the options as they were written.
        new_parser: returns a new parser, with which ``words`` are parsed again.
        options: the options of the program.

    Raise ``RequestRefused``, naming the option, for a combination that is not possible.
    """
    from pcopy.jobs.control import ControlRequest
    from pcopy.tools.arguments import StoredJobRequest

    modes = [mode for mode in JOB_COMMANDS if getattr(values, mode) not in (None, False)]
    if not modes:
        return StoredJobRequest()
    mode = modes[0]
    if len(modes) > 1:
        raise RequestRefused(f"--{mode} and --{modes[1]} cannot be given together: leave one out; see pcopy --help")
    discard, change = None, ControlRequest()
    if mode == "control":
        change, operands = job_control_request(operands), ()
    if mode == "discard":
        discard, operands = (*values.discard, *operands), ()
        if bool(discard) == (values.older_than is not None):
            raise RequestRefused(
                "--discard: name jobs, or give --older-than AGE, and not both; pcopy --jobs lists them"
            )
    if operands:
        if mode == "resume":
            way = "write pcopy --resume, or pcopy --resume JOB"
            raise RequestRefused(
                f"--resume takes a job, not SRC and DST: leave out {printable_path(operands[0])}; {way}"
            )
        raise RequestRefused(f"--{mode} takes no SRC or DST: leave out {printable_path(operands[0])}")
    given, accepted = _spellings_of_given_options(words, new_parser()), options_with_command(options, mode)
    for name, option in given.items():
        if name != mode and name not in accepted:
            why = "a job goes on as it began" if mode == "resume" else "it copies nothing"
            raise RequestRefused(f"{option} cannot be given with --{mode}: {why}; leave it out")
    older_than = None if values.older_than is None else age_in_seconds(values.older_than)
    return StoredJobRequest(
        values.resume, values.jobs, discard, frozenset(given) - {mode}, older_than, values.control, change
    )


def job_control_request(words: Sequence[bytes]) -> ControlRequest:
    """Return the changes of a running job that the ``words`` after ``--control JOB`` request.

    Raise ``RequestRefused`` if there are none, for an unknown word, or for two words that contradict each other.
    """
    from pcopy.jobs.control import ControlRequest

    if not words:
        raise RequestRefused(f"--control JOB: say what is to change: {_CONTROL_WORDS}")
    fields: dict[str, Any] = {}
    for word in map(os.fsdecode, words):
        name, equals, value = word.partition("=")
        try:
            field, meaning = name, 0
            if word in ("pause", "resume"):
                field, meaning = "paused", word == "pause"
            elif equals and name in _CONTROL_CONVERTERS:
                meaning = _CONTROL_CONVERTERS[name](value)
            else:
                raise ValueError(f"not one of {_CONTROL_WORDS}")
        except ValueError as error:
            raise RequestRefused(f"--control: {printable_path(os.fsencode(word))}: {error}") from None
        if fields.setdefault(field, meaning) != meaning:
            raise RequestRefused(
                f"--control: {printable_path(os.fsencode(word))}: contradicts another word; leave one of them out"
            )
    return ControlRequest(**fields)


def _spellings_of_given_options(words: Sequence[str], parser: ArgumentParser) -> dict[str, str]:
    """Return the options that ``words`` contain: the attribute in the namespace, and the spelling that the user has
    chosen (such as ``-q``).

    Messages use the spelling. ``parser`` is modified, and must not be used afterwards.
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


def _parse_path(text: str) -> bytes:
    """Return the path ``text`` as bytes. Raise ``ValueError`` if it is empty."""
    if not text:
        raise ValueError("the empty string names nothing")
    return os.fsencode(text)


JOB_OPTIONS: tuple[Option, ...] = (
    Option(
        "--resume",
        "pcopy psync",
        "resuming jobs after an interruption",
        "resume an unfinished job, by name or directory (default: the only one)",
        brief="go on with an unfinished job",
        value="JOB|DIR",
        parse=_parse_path,
        nargs="?",
        const=b"",
        in_files=False,
    ),
    Option(
        "--jobs",
        "pcopy psync",
        "resuming jobs after an interruption",
        "list unfinished jobs, and the progress of running ones, but not those of --checkpoint DIR",
        brief="list unfinished jobs",
        in_files=False,
    ),
    Option(
        "--control",
        "pcopy psync",
        "resuming jobs after an interruption",
        "change a running job, by name or directory: bwlimit=RATE, oplimit=N, active=N (only N "
        "ranks take work), pause, resume; several words at once",
        value="JOB",
        parse=_parse_path,
        in_files=False,
    ),
    Option(
        "--discard",
        "pcopy psync",
        "resuming jobs after an interruption",
        "remove unfinished jobs, by their names or directories, and their temporary files",
        action="extend",
        value="JOB",
        parse=_parse_path,
        nargs="*",
        in_files=False,
    ),
    Option(
        "--checkpoint",
        "pcopy psync",
        "resuming jobs after an interruption",
        "store the job in this directory, and resume a job that is stored there; none: store no "
        "job (default: below ~/.local/state/pcopy, or $XDG_STATE_HOME/pcopy)",
        value="DIR",
        parse=_parse_path,
    ),
    Option(
        "--checkpoint-interval",
        "pcopy psync",
        "resuming jobs after an interruption",
        "longest time between two checkpoints (default 60); the first ones come sooner",
        value="SECONDS",
        parse=parse_seconds,
        default=60.0,
        with_commands="resume",
    ),
    Option(
        "--checkpoint-store",
        "pcopy psync",
        "resuming jobs after an interruption",
        "where tasks wait until they run: auto (default: in memory; what does not fit goes to a "
        "database in --spool), pickle (the same with plain files), lmdb (in a database from the "
        "start)",
        value="HOW",
        choices=CHECKPOINT_STORE_CHOICES,
        default=CHECKPOINT_STORE_CHOICES[0],
        with_commands="resume",
    ),
    Option(
        "--spool",
        "pcopy psync",
        "resuming jobs after an interruption",
        "directory on each host for waiting tasks that do not fit into memory",
        value="DIR",
        parse=_parse_path,
        with_commands="resume",
    ),
    Option(
        "--memory",
        "pcopy psync",
        "resuming jobs after an interruption",
        "maximum bytes of waiting tasks in the memory of each host",
        value="SIZE",
        parse=partial(parse_positive_size, what="work needs"),
        default=0,
        with_commands="resume",
    ),
)
"""The options on stored jobs."""
