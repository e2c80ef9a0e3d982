"""The parsed command lines of the programs: one class for each program, whose objects ``pcopy.cli`` creates. Also the
comparison of a command line with the job that it resumes.

Rule: a resumed job copies what it was originally asked to copy. The user may change only options that do not determine
the result, such as bandwidth limits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pcopy.errors import RequestRefused, path_refused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.jobs.control import ControlRequest
from pcopy.jobs.lifecycle import CheckpointSettings, resume_command
from pcopy.report.screen import OutputOptions
from pcopy.tasks.base.job import ArchiveOptions, CopyOptions, Options, options_by_name

if TYPE_CHECKING:
    from pcopy.jobs.directories import StoredJob
    from pcopy.tasks.base.job import Root
    from pcopy.walk.expression import FindExpression

_FIELDS_IGNORED_ON_RESUME = {
    *("umask", "dry_run", "select", "itemize", "after", "before", "nul_separated", "sequential"),
}
"""Fields of ``Options`` and ``CopyOptions`` that may differ between a stored job and the command line that resumes it,
because they do not influence the result in the destination.

``options_determining_result`` returns neither them nor the fields that ``--resume`` replaces. It returns the fields of
the filters (``select``) one by one instead.
"""
_HASH_IMPLYING_OPTIONS = frozenset(("--signature", "--manifest", "--verify", "--repair"))
"""Options that need a hash algorithm; if ``--hash`` is not given, they imply the default one."""
_OPTION_WORDS_BY_FIELD = {"patterns": "--exclude and --include"}
"""What messages call a field of ``ItemFilters`` whose name is not that of an option."""


ONLY_UNFINISHED_JOB = b""
"""Value of ``StoredJobRequest.resume`` if ``--resume`` is given without a job; it means the only unfinished job."""


class StoredJobRequest(NamedTuple):
    """What the command line asks to be done with older jobs: resume, list, discard or control them.

    Fields:
    - ``resume``: name or directory of the job to resume; ``ONLY_UNFINISHED_JOB`` if no job was named; None: nothing is
      resumed.
    - ``jobs``: True if jobs are to be listed (``--jobs``).
    - ``discard``: the jobs to discard. An empty tuple means all jobs that were inactive for ``older_than`` seconds, and
      None means that nothing is discarded.
    - ``given_options``: the names (fields of the parser) of all options on the command line.
    - ``older_than``: the minimum age in seconds for ``discard``; None if it was not given.
    - ``control``: name or directory of the running job that is to be changed; None: none.
    - ``change``: how that running job is to be changed.
    """

    resume: bytes | None = None
    jobs: bool = False
    discard: tuple[bytes, ...] | None = None
    given_options: frozenset[str] = frozenset()
    older_than: float | None = None
    control: bytes | None = None
    change: ControlRequest = ControlRequest()

    @property
    def is_any_command_requested(self) -> bool:
        """True if the user asks for a command on older jobs: to resume, list, discard or control them."""
        is_asked = self.resume is not None or self.discard is not None or self.control is not None
        return self.jobs or is_asked


class CopyArguments(NamedTuple):
    """The parsed command line of ``pcopy``.

    Fields:
    - ``sources``, ``destination``: the paths SRC and DST; empty if ``job_request`` refers to an older job.
    - ``no_target_directory``: True if DST is the copy itself, even if DST is an existing directory.
    - ``ranks``: the number of ranks; 0 if ``-n`` was not given.
    - ``in_flight``: number of file system operations that each rank keeps under way at a time; 0: automatic.
    - ``options``, ``copy_options``: the options of the job. ``umask`` is not set here: ``CopyJob`` sets it.
    - ``is_recorded``: True if the job may be recorded, so that it can be resumed; False with ``--checkpoint none``.
    - ``checkpoint``: how the job is recorded; its ``directory`` is empty if the user named none.
    - ``job_request``: what is to be done with older jobs.
    - ``force``: True if the copy is to start even if there seems to be too little free space.
    - ``program``: the name under which the program was called.
    - ``changeable_fields``: the options whose stored values ``--resume`` replaces: the attribute of the parser, and the
      field of ``Options``.
    """

    sources: tuple[bytes, ...]
    destination: bytes
    no_target_directory: bool = False
    ranks: int = 0
    in_flight: int = 0
    options: Options = Options()
    copy_options: CopyOptions = CopyOptions()
    output: OutputOptions = OutputOptions()
    is_recorded: bool = True
    checkpoint: CheckpointSettings = CheckpointSettings()
    job_request: StoredJobRequest = StoredJobRequest()
    force: bool = False
    program: str = "pcopy"
    changeable_fields: Mapping[str, str] = {}


class ComparisonArguments(NamedTuple):
    """The options of ``pverify --compare``.

    Fields:
    - ``properties``: the properties that are compared, such as size or mode, as bits
      (``pcopy.tasks.compare.properties``).
    - ``window``: seconds by which times may differ and still count as equal.
    - ``lists``: (class of items, such as ``only-a``; file to which the paths of these items are written), one for each
      ``--output``.
    - ``nul_separated``: True if paths in these files end with a NUL byte, False if they end with a newline.
    """

    properties: int
    window: int = 0
    lists: tuple[tuple[str, bytes], ...] = ()
    nul_separated: bool = False


class VerifyArguments(NamedTuple):
    """The parsed command line of ``pverify``.

    In ``options``, a ``block_size`` of 0 and an empty ``hash`` mean that the option was not given.

    Fields:
    - ``paths``: what is compared: two trees, or a signature file and a tree, or the tree for ``create`` or
      ``manifest``.
    - ``create``: the signature file to be written; empty: none is written.
    - ``manifest``: with ``create``, the manifest to be written, else the manifest to compare with; empty: none.
    - ``ranks``, ``in_flight``: number of ranks, and of operations that each keeps under way; 0: the default.
    - ``force``: True if existing output files may be replaced.
    - ``comparison``: the options of ``--compare``; None without it.
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


class TreeProgramArguments(NamedTuple):
    """The part of the command line that is common to ``prm``, ``pchmod``, ``pstripe`` and ``pwalk``: programs that work
    on trees in place, without a copy.

    ``ranks`` and ``in_flight`` (operations that each rank keeps under way) are 0 if the option was not given.
    """

    paths: tuple[bytes, ...]
    ranks: int = 0
    in_flight: int = 0
    options: Options = Options(sync=False)
    output: OutputOptions = OutputOptions()
    list_file: bytes = b""
    """The file of ``--from``, which lists the paths of the items; empty without that option. If it is given, ``paths``
    has at most one element: the directory that contains all listed items.
    """
    nul_separated: bool = False


class RemoveArguments(NamedTuple):
    """The parsed command line of ``prm``.

    Fields:
    - ``yes``: True if items are removed without asking the user.
    - ``may_be_missing``: True if a path that does not exist is not a failure.
    - ``whole_directories``: True if directories that ``--from`` lists are removed with all their contents; False if
      they are removed only if they are empty.
    """

    tree: TreeProgramArguments
    yes: bool = False
    may_be_missing: bool = False
    whole_directories: bool = False


class ArchiveArguments(NamedTuple):
    """The parsed command line of ``ptar``.

    Fields:
    - ``archive``: the archive that is created or read.
    - ``paths``: PATHs to be archived, or the names of the members to be unpacked or listed (empty: all).
    - ``directory``: the directory of ``-C``: PATHs are relative to it, or members are unpacked into it. Empty: the
      working directory.
    - ``ranks``, ``in_flight``: number of ranks, and of operations that each keeps under way; 0: the default.
    - ``archive_options``: the options of the job that only ``ptar`` has, as far as the command line determines them.
    """

    archive: bytes
    paths: tuple[bytes, ...]
    directory: bytes = b""
    ranks: int = 0
    in_flight: int = 0
    options: Options = Options()
    archive_options: ArchiveOptions = ArchiveOptions()
    output: OutputOptions = OutputOptions()
    list_file: bytes = b""
    """The file of ``--from``, which lists the paths that are archived or the members that are unpacked; empty
    without that option. ``nul_separated`` is True if its paths end with a NUL byte.
    """
    nul_separated: bool = False
    is_compressed_by_name: bool = False
    """True if the name of a new archive chooses its compression (``pcopy.tasks.archive.compression``)."""


class StripeArguments(NamedTuple):
    """The parsed command line of ``pstripe``, which reports or changes Lustre layouts (how files are striped over
    servers). ``stripe`` is the layout that files are to get; it is empty if layouts are only reported.
    """

    tree: TreeProgramArguments
    stripe: str = ""
    stripe_table: str = ""


class BroadcastArguments(NamedTuple):
    """The parsed command line of ``pbcast``.

    Fields:
    - ``files``: the files to be sent.
    - ``directory``: the directory to which they are written on each host.
    - ``bwlimit``: limit in bytes per second; 0: unlimited.
    """

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
    - ``directory``: the directory in which files are created for the measurements.
    - ``files``: the maximum number of files of each rank in a metadata test.
    - ``size``: the maximum number of bytes that each rank writes and reads in a data test.
    - ``seconds``: the maximum duration of one measurement.
    - ``blocks``: the sizes in bytes of a write or read; each is measured.
    - ``repeats``: how often each measurement is made.
    - ``tests``: the names of the tests; empty: all.
    - ``direct``: True if data tests bypass the page cache.
    - ``max_in_flight``: the maximum number of operations that a rank keeps under way at a time; smaller numbers are
      measured, too.
    - ``svg``: the file for the chart; empty: no chart.
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
    """The parsed command line of ``pwalk``.

    Fields:
    - ``expression``: the tests that an item must pass to be listed, such as ``-name``.
    - ``outputs``: the files to which the list is written.
    - ``sort``: the field by which the list is sorted; empty: it is not sorted.
    - ``fields``: the fields of each item in JSON, CSV and Parquet lists.
    - ``json_lines``, ``ls``: the format of the list on standard output; if both are False, it consists of paths.
    - ``nul_separated``: True if paths in lists, read or written, end with a NUL byte.
    - ``summary``: True if sums are printed; ``page``: the file for the sums as an HTML page, or empty.
    - ``force``: True if existing files may be replaced.
    - ``now_ns``: the time when the command line was parsed, in nanoseconds since the epoch; ages are relative to it.
    """

    tree: TreeProgramArguments
    expression: FindExpression
    outputs: tuple[bytes, ...] = ()
    sort: str = ""
    fields: tuple[str, ...] = ()
    nul_separated: bool = False
    json_lines: bool = False
    ls: bool = False
    summary: bool = False
    page: bytes = b""
    force: bool = False
    now_ns: int = 0


class ChmodArguments(NamedTuple):
    """The parsed command line of ``pchmod``.

    ``change`` is what is to be changed: mode (as in chmod(1), or ""), user number and group number (-1: unchanged), and
    two texts about ACLs; ``ChangeOptions.change`` describes them.
    """

    tree: TreeProgramArguments
    change: tuple[str, int, int, bytes, bytes] = ("", -1, -1, b"", b"")

    @property
    def changes_owner(self) -> bool:
        """True if ``--owner`` or ``--group`` was given."""
        return self.change[1:3] != (-1, -1)

    @property
    def changes_only_owner(self) -> bool:
        """True if ``--owner`` or ``--group`` was given, and neither a mode nor an ACL."""
        return self.changes_owner and not (self.change[0] or self.change[3])


def options_determining_result(arguments: CopyArguments) -> dict[str, Any]:
    """Return SRC, DST and the options that determine the result in the destination; the key is the option as the user
    writes it.

    They are stored with a job. If a later command line names the same job directory, it is compared with them.

    Paths are made absolute, but symbolic links in them are not resolved, and DST is not replaced by the target to which
    it leads now: that target changes as soon as DST exists.
    """
    compared: dict[str, Any] = {
        "SRC": tuple(_absolute_path(source) for source in arguments.sources),
        "DST": _absolute_path(arguments.destination),
        "--no-target-directory": arguments.no_target_directory,
    }
    ignored = _FIELDS_IGNORED_ON_RESUME.union(arguments.changeable_fields.values())
    options = options_by_name(arguments.options, arguments.copy_options) | arguments.options.select._asdict()
    for name, value in options.items():
        if name not in ignored:
            word = _OPTION_WORDS_BY_FIELD.get(name) or "--" + name.replace("_", "-")
            compared[word] = tuple(value) if isinstance(value, tuple) else value
    return compared


def refuse_changed_arguments(
    stored: StoredJob, arguments: CopyArguments, words: Sequence[str], resolve: Callable[[], Sequence[Root]]
) -> None:
    """Raise ``RequestRefused`` if the stored job was started with arguments that differ from ``arguments``.

    Args:
        stored: the stored job.
        arguments: the parsed command line.
        words: the words of the command line.
        resolve: returns the roots (pairs of source and target) to which SRC and DST of ``arguments`` lead now.

    If SRC or DST differ as text, they can still mean the same paths. So the roots to which the stored SRC and DST lead
    now are compared with those of ``arguments``.
    """
    from pcopy.jobs.earlier_jobs import are_same_paths, roots_of_repeated_command

    different = stored.file.differing_option_names(options_determining_result(arguments))
    if {"SRC", "DST"}.intersection(different) and are_same_paths(roots_of_repeated_command(stored.file), resolve()):
        different = [each for each in different if each not in ("SRC", "DST")]
    is_named = any(word.partition("=")[0] == "--hash" for word in words)
    if "--hash" in different and _HASH_IMPLYING_OPTIONS.intersection(different) and not is_named:
        different.remove("--hash")
    if different:
        raise path_refused(
            arguments.checkpoint.directory,
            f"holds an unfinished job with other arguments (different: {', '.join(different)}): name another "
            f"directory, or resume that job: {resume_command(stored.path)}",
        )


def _absolute_path(path: bytes) -> bytes:
    """Return ``path`` as an absolute path, without resolving symbolic links. The working directory is read only if
    ``path`` is relative, since it may have been removed.
    """
    return path if path.startswith(b"/") else os.path.join(os.getcwdb(), path)


def options_of_resumed_job(
    stored: Options,
    new: Options,
    given_options: frozenset[str] | None,
    changeable_fields: Mapping[str, str],
    *,
    verifies: bool = False,
) -> Options:
    """Return the options of a resumed job: those of the stored job, except those that the user may change and has given
    now.

    Args:
        stored: the options that the job was started with.
        new: the options of this command line.
        given_options: the names of the options on this command line. None: the command line names SRC and DST as well
            (no ``--resume``), so that an option that is missing gets its default value instead of the stored one.
        changeable_fields: the options that may be changed, as in ``CopyArguments``.
        verifies: True if the stored job verifies its copies (``--verify``).

    Raise ``RequestRefused`` if the resulting options contradict each other.
    """
    fields = {
        field: getattr(new, field)
        for name, field in changeable_fields.items()
        if given_options is None or name in given_options
    }
    options = stored._replace(**fields, itemize=new.itemize)
    if verifies and not options.sync:
        raise RequestRefused(
            "--no-sync leaves nothing on storage that the job's --verify could read back: leave out --no-sync"
        )
    return options
