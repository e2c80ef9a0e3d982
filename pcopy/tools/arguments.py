"""The parsed command lines of the programs: values that ``pcopy.cli`` creates from the words of the user.

Rule: a resumed job copies what it was originally asked to copy. Only options that control how it works may be changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.jobs.control import ControlRequest
from pcopy.jobs.lifecycle import CheckpointSettings, resume_command
from pcopy.report.screen import OutputOptions
from pcopy.tasks.base.job import Options
from pcopy.text import printable_path

if TYPE_CHECKING:
    from pcopy.jobs.directories import StoredJob
    from pcopy.tasks.base.job import Root
    from pcopy.walk.expression import Expression

_CHANGEABLE_OPTIONS = {
    "max_errors": "max_errors",
    "termination": "termination",
    "no_sync": "sync",
    "bwlimit": "bwlimit",
    "oplimit": "oplimit",
}
"""Options that may be changed when a job is resumed: name of the option, and the field of ``Options``."""
_NOT_COMPARED_FIELDS = {
    *_CHANGEABLE_OPTIONS.values(),
    *("umask", "dry_run", "select", "itemize", "after", "before", "nul_separated", "walk", "sequential"),
}
"""Fields of ``Options`` that are not compared with a stored job: they do not influence the result in the destination,
or are compared field by field (``select``).
"""
_HASH_IMPLYING_OPTIONS = frozenset(("--signature", "--manifest", "--verify", "--repair"))
"""Options that choose a hash if ``--hash`` is not given."""
_OPTION_WORDS = {"patterns": "--exclude and --include"}
"""Words of the command line for fields of ``Options`` that are not named like an option."""


ONLY_JOB = b""
"""Value of ``JobRequest.resume`` for ``--resume`` without a job: the only unfinished job."""


class JobRequest(NamedTuple):
    """What the command line asks to be done with older jobs: resume, list, discard or control them.

    Fields:
    - ``resume``: the job to resume, ``ALONE``, or None.
    - ``jobs``: True if jobs are to be listed.
    - ``discard``: the jobs to discard; empty: all jobs that were inactive for ``older_than`` seconds; None: none.
    - ``given_options``: the names of the options that were given as well.
    - ``older_than``: the minimum age in seconds for ``discard``, or None.
    - ``control``: the running job to be changed, or None.
    - ``change``: how the job ``control`` is to be changed.
    """

    resume: bytes | None = None
    jobs: bool = False
    discard: tuple[bytes, ...] | None = None
    given_options: frozenset[str] = frozenset()
    older_than: float | None = None
    control: bytes | None = None
    change: ControlRequest = ControlRequest()

    @property
    def is_any(self) -> bool:
        """True if the command line asks for something to be done with older jobs."""
        is_asked = self.resume is not None or self.discard is not None or self.control is not None
        return self.jobs or is_asked


class CopyArguments(NamedTuple):
    """The parsed command line of ``pcopy``.

    Fields:
    - ``sources``, ``destination``: the paths; empty if ``job_request`` refers to an older job.
    - ``ranks``: the number of ranks; 0 if ``-n`` was not given.
    - ``in_flight``: operations that each rank keeps under way; 0: automatic.
    - ``options``: the options of the job; its ``umask`` has the default value here.
    - ``is_recorded``: True if the job may be recorded for ``--resume``.
    - ``checkpoint``: how the job is recorded; its ``directory`` is empty if the user named none.
    - ``force``: True if the copy is to start even if there seems to be too little free space.
    - ``program``: the name under which the program was called.
    """

    sources: tuple[bytes, ...]
    destination: bytes
    no_target_directory: bool = False
    ranks: int = 0
    in_flight: int = 0
    options: Options = Options()
    output: OutputOptions = OutputOptions()
    is_recorded: bool = True
    checkpoint: CheckpointSettings = CheckpointSettings()
    job_request: JobRequest = JobRequest()
    force: bool = False
    program: str = "pcopy"


class ComparisonArguments(NamedTuple):
    """The options of ``pverify --compare``.

    Fields:
    - ``properties``: the properties that are compared, as bits (``pcopy.tasks.compare.properties``).
    - ``window``: seconds by which times may differ.
    - ``lists``: (class of items, file to which their paths are written), one for each ``--output``.
    - ``nul_separated``: True if paths in these files end with a NUL byte.
    """

    properties: int
    window: int = 0
    lists: tuple[tuple[str, bytes], ...] = ()
    nul_separated: bool = False


class VerifyArguments(NamedTuple):
    """The parsed command line of ``pverify``.

    In ``options``, a ``block_size`` of 0 and an empty ``hash`` mean that the option was not given.
    """

    paths: tuple[bytes, ...]
    create: bytes = b""
    manifest: bytes = b""
    ranks: int = 0
    in_flight: int = 0
    options: Options = Options(sync=False, block_size=0)
    output: OutputOptions = OutputOptions()
    force: bool = False
    comparison: ComparisonArguments | None = None


class TreeArguments(NamedTuple):
    """The part of the command line that is common to all programs that process trees in place."""

    paths: tuple[bytes, ...]
    ranks: int = 0
    in_flight: int = 0
    options: Options = Options(sync=False)
    output: OutputOptions = OutputOptions()
    list_file: bytes = b""
    """The file of ``--from``, or empty. If it is given, ``paths`` has at most one element: the directory that contains
    all listed items.
    """
    nul_separated: bool = False


class RemoveArguments(NamedTuple):
    """The parsed command line of ``prm``.

    Fields:
    - ``yes``: True if items are removed without a question.
    - ``may_be_missing``: True if a path that does not exist is not a failure.
    - ``whole_directories``: True if listed directories are removed with all their contents.
    """

    tree: TreeArguments
    yes: bool = False
    may_be_missing: bool = False
    whole_directories: bool = False


class ArchiveArguments(NamedTuple):
    """The parsed command line of ``ptar``. ``directory`` (``-C``) is the directory that paths are relative to, or into
    which members are unpacked.
    """

    archive: bytes
    paths: tuple[bytes, ...]
    directory: bytes = b""
    ranks: int = 0
    in_flight: int = 0
    options: Options = Options()
    output: OutputOptions = OutputOptions()
    list_file: bytes = b""
    """The file of ``-T``, which lists what is archived or unpacked; ``nul`` is True if its paths end with a
    NUL byte.
    """
    nul_separated: bool = False


class StripeArguments(NamedTuple):
    """The parsed command line of ``pstripe``. ``stripe`` is empty if layouts are only reported."""

    tree: TreeArguments
    stripe: str = ""
    stripe_table: str = ""


class BroadcastArguments(NamedTuple):
    """The parsed command line of ``pbcast``."""

    files: tuple[bytes, ...]
    directory: bytes
    bwlimit: int = 0
    sync: bool = True
    fsync: bool = False
    dry_run: bool = False
    termination: str = "tree"
    output: OutputOptions = OutputOptions()


class BenchArguments(NamedTuple):
    """The parsed command line of ``pdbench``.

    Fields:
    - ``files``: the number of files of each rank.
    - ``size``: the number of bytes that each rank writes and reads.
    - ``seconds``: the maximum duration of a measurement.
    - ``blocks``: the block sizes in bytes.
    - ``repeats``: how often each measurement is made.
    - ``tests``: the names of the tests; empty: all.
    - ``max_in_flight``: the maximum number of operations that a rank keeps under way.
    - ``svg``: the file for the chart, or empty.
    """

    directory: bytes
    files: int
    size: int
    seconds: float
    blocks: tuple[int, ...]
    repeats: int = 1
    tests: tuple[str, ...] = ()
    direct: bool = False
    max_in_flight: int = 1
    ranks: int = 0
    svg: bytes = b""
    dry_run: bool = False
    termination: str = "tree"
    output: OutputOptions = OutputOptions()


class WalkArguments(NamedTuple):
    """The parsed command line of ``pwalk``. ``now_ns`` is the time when it was parsed, in nanoseconds since the epoch:
    ages are relative to it.
    """

    tree: TreeArguments
    expression: Expression
    outputs: tuple[bytes, ...] = ()
    sort: str = ""
    fields: tuple[str, ...] = ()
    nul_separated: bool = False
    json_lines: bool = False
    ls: bool = False
    summary: bool = False
    base: bytes = b""
    page: bytes = b""
    force: bool = False
    now_ns: int = 0


class ChangeArguments(NamedTuple):
    """The parsed command line of ``pchmod``; ``change`` as in ``Options``."""

    tree: TreeArguments
    change: tuple[str, int, int, bytes, bytes] = ("", -1, -1, b"", b"")

    @property
    def changes_owner(self) -> bool:
        """True if the owner or the group is to be changed."""
        return self.change[1:3] != (-1, -1)

    @property
    def changes_only_owner(self) -> bool:
        """True if nothing but the owner and the group is to be changed."""
        return self.changes_owner and not (self.change[0] or self.change[3])


def result_options(arguments: CopyArguments) -> dict[str, Any]:
    """Return the options that determine the result in the destination, by option word, for comparison with a stored
    job.

    Paths are absolute but otherwise as the user gave them: the target to which DST resolves changes as soon as DST
    exists.
    """
    compared: dict[str, Any] = {
        "SRC": tuple(_absolute_path(source) for source in arguments.sources),
        "DST": _absolute_path(arguments.destination),
        "--no-target-directory": arguments.no_target_directory,
    }
    options = {**arguments.options._asdict(), **arguments.options.select._asdict()}
    for name, value in options.items():
        if name not in _NOT_COMPARED_FIELDS:
            word = _OPTION_WORDS.get(name) or "--" + name.replace("_", "-")
            compared[word] = tuple(value) if isinstance(value, tuple) else value
    return compared


def refuse_other_arguments(
    stored: StoredJob, arguments: CopyArguments, words: Sequence[str], resolve: Callable[[], Sequence[Root]]
) -> None:
    """Raise ``RequestRefused`` if the stored job was started with arguments that differ from ``arguments``.

    Args:
        stored: the stored job.
        arguments: the parsed command line.
        words: the words of the command line.
        resolve: returns the roots that ``arguments`` resolve to now.

    The meaning of DST may have changed since the job was started. So if SRC or DST differ as text, the stored ones and
    these are compared by the roots that both resolve to now.
    """
    from pcopy.jobs.earlier_jobs import roots_of_command_now, same_paths

    different = stored.file.differing_keys(result_options(arguments))
    if {"SRC", "DST"}.intersection(different) and same_paths(roots_of_command_now(stored.file), resolve()):
        different = [each for each in different if each not in ("SRC", "DST")]
    is_named = any(word.partition("=")[0] == "--hash" for word in words)
    if "--hash" in different and _HASH_IMPLYING_OPTIONS.intersection(different) and not is_named:
        different.remove("--hash")
    if different:
        raise RequestRefused(
            f"{printable_path(arguments.checkpoint.directory)}: holds an unfinished job with other arguments "
            f"(different: {', '.join(different)}): name another directory, "
            f"or resume it: {resume_command(stored.path)}"
        )


def _absolute_path(path: bytes) -> bytes:
    """Return ``path`` as an absolute path. The current directory is not read if ``path`` is absolute already: it may
    have been removed.
    """
    return path if path.startswith(b"/") else os.path.join(os.getcwdb(), path)


def resumed_options(stored: Options, new: Options, given_options: frozenset[str] | None) -> Options:
    """Return the options of a resumed job: the stored ones, except those that may be changed and are given now.

    Args:
        stored: the options that the job was started with.
        new: the options of this command line.
        given_options: the names of the options on this command line. None: the command line is complete, so that an
            option that is missing has its default value.

    Raise ``RequestRefused`` if the resulting options contradict each other.
    """
    fields = {
        field: getattr(new, field)
        for name, field in _CHANGEABLE_OPTIONS.items()
        if given_options is None or name in given_options
    }
    options = stored._replace(**fields, itemize=new.itemize)
    if options.verify and not options.sync:
        raise RequestRefused(
            "--no-sync leaves nothing on storage that the job's --verify could read back: leave it out"
        )
    return options
