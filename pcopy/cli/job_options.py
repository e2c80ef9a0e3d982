"""Options on jobs that outlast a run: where they are kept, and how to go on with them, list them, discard them.

Rule: a resumed job copies what it was asked to copy. Options that say how it works may be given anew; those that would
change what it leaves in the destination are refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pcopy.cli.argument_types import absolute, age, seconds, taking
from pcopy.errors import Refused
from pcopy.tasks.job import Options
from pcopy.text import shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

STORES = ("auto", "pickle", "lmdb")
NO_CHECKPOINT = "none"
ALONE = b""
"""What ``--resume`` means without a job: the only one that there is."""

USAGES = ("pcopy --resume [JOB|DIR]", "pcopy --jobs", "pcopy --discard JOB...", "pcopy --discard --older-than AGE")

_TELLING = frozenset(("json", "quiet", "verbose"))
MAY_CHANGE = _TELLING | {
    *("ranks", "archive", "errors", "max_errors", "progress", "progress_interval", "no_sync", "termination"),
    *("checkpoint_interval", "checkpoint_store", "spool", "memory"),
}
"""What may be given with ``--resume``, as names in the namespace: nothing of it shows in the destination."""

_WITH: dict[str, frozenset[str]] = {"resume": MAY_CHANGE, "jobs": _TELLING, "discard": _TELLING | {"older_than"}}

_RENEWED = {"max_errors": "max_errors", "termination": "termination", "no_sync": "sync"}
_NOT_ASKED = {*_RENEWED.values(), "umask"}


class Checkpoint(NamedTuple):
    """Where and how often a job stores what it has done.

    ``directory`` is absolute, None for one below the state directory; ``interval`` is in seconds, ``memory`` in bytes,
    0 for automatic; an empty ``spool`` stands for the default.
    """

    wanted: bool = True
    directory: bytes | None = None
    interval: float = 60.0
    store: str = "auto"
    spool: bytes = b""
    memory: int = 0


class Asked(NamedTuple):
    """What is to be done with older jobs, if anything; ``given`` are the options that came with that.

    ``discard`` names jobs, or is empty where all that nobody has worked on for ``older_than`` seconds are meant.
    """

    resume: bytes | None = None
    jobs: bool = False
    discard: tuple[bytes, ...] | None = None
    given: frozenset[str] = frozenset()
    older_than: float | None = None

    @property
    def anything(self) -> bool:
        return self.jobs or self.resume is not None or self.discard is not None


def add_job_options(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("jobs that go on after an interruption").add_argument
    defaults = Checkpoint()
    add("--resume", metavar="JOB|DIR", nargs="?", type=taking(_job), const=ALONE, default=None,
        help="go on with an unfinished job, by name or directory (default: the only one that there is)")  # fmt: skip
    add("--jobs", action="store_true", help="list unfinished jobs")
    add("--discard", metavar="JOB", nargs="*", action="extend", type=taking(_job), default=None,
        help="remove unfinished jobs, by their names or directories, and their temporary files")  # fmt: skip
    add("--older-than", metavar="AGE", type=taking(age), default=None,
        help="with --discard: all jobs on which nobody has worked for so long (7d, 12h; also s, m, w), none that "
        "runs")  # fmt: skip
    add("--checkpoint", metavar="DIR", type=taking(_path), default=None,
        help="keep the job in this directory, and go on with the one that is there; none: keep none "
        "(default: below the state directory)")  # fmt: skip
    add("--checkpoint-interval", metavar="SECONDS", type=taking(seconds), default=defaults.interval,
        help="longest time between two checkpoints (default 60); the first come sooner")  # fmt: skip
    add("--checkpoint-store", choices=STORES, metavar="HOW", default=defaults.store,
        help="where waiting work is held: pickle (in memory), lmdb (in files), auto (default: in memory while that "
        "lasts)")  # fmt: skip
    add("--spool", metavar="DIR", type=taking(_path), default=None,
        help="directory on each host for what does not fit into memory")  # fmt: skip
    add("--memory", metavar="SIZE", type=taking(_memory), default=defaults.memory,
        help="bytes of waiting work that a host holds in memory")  # fmt: skip


def checkpoint_of(values: Namespace) -> Checkpoint:
    """The meaning of the options on checkpoints; relative paths are taken from the working directory."""
    wanted = values.checkpoint != NO_CHECKPOINT
    return Checkpoint(
        wanted=wanted,
        directory=absolute(os.fsencode(values.checkpoint)) if wanted and values.checkpoint else None,
        interval=values.checkpoint_interval,
        store=values.checkpoint_store,
        spool=absolute(os.fsencode(values.spool)) if values.spool else b"",
        memory=values.memory,
    )


def asked_of(
    values: Namespace, operands: Sequence[bytes], words: Sequence[str], make: Callable[[], ArgumentParser]
) -> Asked:
    """What is asked of an older job; ``words`` are the options, read once more by the parser that ``make`` makes.

    Raises ``Refused``, naming the option, for whatever cannot be combined.
    """
    modes = [mode for mode in _WITH if getattr(values, mode) not in (None, False)]
    if not modes:
        if values.older_than is not None:
            raise Refused("--older-than says which jobs to --discard: give that, too; see pcopy --help")
        return Asked()
    mode = modes[0]
    if len(modes) > 1:
        raise Refused(f"--{mode} and --{modes[1]}: one at a time; see pcopy --help")
    discard = None
    if mode == "discard":
        discard, operands = (*values.discard, *operands), ()
        if bool(discard) == (values.older_than is not None):
            raise Refused("--discard: name jobs, or give --older-than AGE, and not both; pcopy --jobs lists them")
    if operands:
        what = "SRC and DST, which the job knows" if mode == "resume" else "SRC or DST"
        raise Refused(f"--{mode} takes no {what}: leave out {shown(operands[0])}")
    given = _given(words, make())
    for name, option in given.items():
        if name != mode and name not in _WITH[mode]:
            why = "a job goes on as it began" if mode == "resume" else "it copies nothing"
            raise Refused(f"{option} cannot be given with --{mode}: {why}; leave it out")
    return Asked(values.resume, values.jobs, discard, frozenset(given) - {mode}, values.older_than)


def asked_for(
    sources: Sequence[bytes], destination: bytes, no_target_directory: bool, options: Options
) -> dict[str, Any]:
    """What a command line asks to be left in the destination, for comparison with a stored job, by option.

    The paths are as the user gave them, from the root: what DST resolves to changes as soon as it exists.
    """
    wanted: dict[str, Any] = {
        "SRC": tuple(_from_root(source) for source in sources),
        "DST": _from_root(destination),
        "--no-target-directory": no_target_directory,
    }
    for name, value in options._asdict().items():
        if name not in _NOT_ASKED:
            wanted["--" + name.replace("_", "-")] = tuple(value) if isinstance(value, tuple) else value
    return wanted


def _from_root(path: bytes) -> bytes:
    """``path`` as it was given, behind the current directory if that matters; where it does not, there may be none."""
    return path if path.startswith(b"/") else os.path.join(os.getcwdb(), path)


def renewed(stored: Options, now: Options, given: frozenset[str]) -> Options:
    """The options of a resumed job: the stored ones, but for those that were ``given`` now. Raises ``Refused``."""
    fields = {field: getattr(now, field) for name, field in _RENEWED.items() if name in given}
    options = stored._replace(**fields)
    if options.verify and not options.sync:
        raise Refused("--no-sync leaves nothing on storage that the job's --verify could read back: leave it out")
    return options


def _given(words: Sequence[str], parser: ArgumentParser) -> dict[str, str]:
    """The options in ``words``: names in the namespace, and how each was written."""
    import argparse

    written = {word.partition("=")[0] for word in words}
    spelling: dict[str, str] = {}
    for action in parser._actions:  # the parser serves only this: what is not given leaves no trace
        action.default = argparse.SUPPRESS
        if action.dest not in spelling or written.intersection(action.option_strings):
            exact = [option for option in action.option_strings if option in written]
            spelling[action.dest] = (exact or list(action.option_strings))[-1]
    return {name: spelling[name] for name in vars(parser.parse_known_args(words)[0])}


def _job(text: str) -> bytes:
    return os.fsencode(_path(text))


def _path(text: str) -> str:
    if not text:
        raise ValueError("the empty string names nothing")
    return text


def _memory(text: str) -> int:
    from pcopy.cli.units import parse_size

    size = parse_size(text)
    if size < 1:
        raise ValueError("work needs at least one byte")
    return size
