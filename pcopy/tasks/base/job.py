"""Immutable description of a job: its roots, its options and its counters. All values consist of primitives, so that
they can be sent to other ranks and stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pcopy.errors import InvariantBroken
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.mounted import MountRootTuple
from pcopy.fsio.preserve import PreservedMetadataKinds as PreservedMetadataKinds
from pcopy.walk.selection import ItemFilters as ItemFilters

if TYPE_CHECKING:
    from pcopy.tasks.base.item_outcomes import PackedItemOutcomes

DeviceInode = tuple[int, int]
"""Device and inode number of a file, as rank 0's host sees them."""

Mount = tuple[bytes, MountRootTuple]
"""Path of a mount point, as an absolute path that begins with a root's ``source`` or ``target``; and what must be
mounted there (file system and its root directory).
"""


class Root(NamedTuple):
    """One source (SRC of the command line) and its target.

    ``source`` and ``target`` are directories that are opened once at the start. All other names are looked up relative
    to them.

    Fields:
        source, target: absolute paths of the two directories.
        item: if SRC is not a directory: its name in the directory ``source``. If it is empty, SRC is the directory
            ``source`` itself.
        name: name of the copy in the directory ``target``. If it is empty, the copy is ``target`` itself, which must
            exist; SRC must be a directory then.
        source_shown, target_shown: paths of SRC and of its target as the user wrote them, for messages.
        source_id, target_id: device and inode number of the directories ``source`` and ``target``.
    """

    source: bytes
    target: bytes
    item: bytes
    name: bytes
    source_shown: bytes
    target_shown: bytes
    source_id: DeviceInode
    target_id: DeviceInode

    def path_below_target(self, path: bytes) -> bytes:
        """Return the path below ``target`` of the item that has ``path`` below ``source``."""
        return b"/".join(part for part in (b"" if self.item else self.name, path) if part)


def mount_codes(roots: Sequence[Root]) -> list[tuple[int, int]]:
    """Return a pair of mount codes for each root: of its source directory and of its target directory. A mount code is
    a number for a file system that means the same on all hosts (``pcopy.fsio.mounts``). Directories on one device of
    rank 0's host have the same code.
    """
    sources: dict[int, int] = {}
    targets: dict[int, int] = {}
    return [
        (sources.setdefault(root.source_id[0], number), targets.setdefault(root.target_id[0], number))
        for number, root in enumerate(roots)
    ]


EXISTING_CHOICES = ("replace", "changed", "newer", "skip", "fail")
"""Values of ``--existing``: what is done with an item of the target that exists already."""

EXISTING_CHOICES_THAT_KEEP = ("newer", "skip", "fail")
"""Values of ``--existing`` with which an existing item is overwritten only if the value explicitly permits it: newer
permits to replace an older item; skip and fail never do.
"""


def message_refusing_existing_choice(existing: str) -> str:
    """Return the message that refuses ``existing``, one of ``EXISTING_CHOICES_THAT_KEEP``, for a job that writes files
    directly under their final names.
    """
    return (
        f"--existing {existing} would keep a file that an interrupted copy left incomplete under its own name: "
        "write --existing changed"
    )


REPORT_CHANGED_ITEMS, REPORT_ALL_ITEMS = 1, 2
"""Values of ``Options.itemize``."""


class Options(NamedTuple):
    """Options that several programs have, as the user gave them. Options of a single program are in its own tuple, such
    as ``CopyOptions``.

    Most fields without a description have the name of a command-line option, here and in the tuples of the programs.
    Sizes are in bytes, and 0 stands for an automatic choice.
    """

    preserve: PreservedMetadataKinds = PreservedMetadataKinds()
    block_size: int = 4 << 20
    sync: bool = True
    max_errors: int = 0
    umask: int = 0o022
    termination: str = "tree"
    sequential: bool = False
    """True if each file is written under its final name, from its start to its end, by one rank: the destination cannot
    do anything else (``pcopy.fsio.sequential``).
    """
    one_file_system: bool = False
    hash: str = ""
    signature: bytes = b""
    manifest: bytes = b""
    direct: bool = False
    drop_cache: bool = False
    dry_run: bool = False
    select: ItemFilters = ItemFilters()
    itemize: int = 0
    """What rank 0 receives of single items: nothing (0), what was done with those that were changed
    (``REPORT_CHANGED_ITEMS``: ``-v``), or with all (``REPORT_ALL_ITEMS``: ``-vv``, ``--log``).
    """
    bwlimit: int = 0
    oplimit: int = 0

    @property
    def writes_signature(self) -> bool:
        """True if the job writes a signature (``--signature``) or a manifest (``--manifest``) of the dataset."""
        return bool(self.signature or self.manifest)


class CopyOptions(NamedTuple):
    """Options of ``pcopy`` and ``psync``.

    ``modify_window`` is in seconds. ``stripe`` is empty unless the user gives a Lustre layout (striping) for new files.
    """

    existing: str = "replace"
    modify_window: int = 0
    chunk_size: int = 0
    checksum: bool = False
    inplace: bool = False
    dereference: bool = False
    verify: bool = False
    repair: bool = False
    reflink: str = "auto"
    fsync: bool = False
    stripe: str = ""
    stripe_table: str = ""
    stripe_affinity: bool = False
    group_lock: bool = False
    list_file: bytes = b""
    nul_separated: bool = False
    delete: bool = False
    max_delete: int = -1
    delete_all: bool = False
    backup: bytes = b""
    compress: str = ""
    """Format and level in which regular files are compressed while they are copied, for example ``zstd:3``; empty if
    they are not.
    """
    decompress: bool = False

    @property
    def compresses_or_decompresses_files(self) -> bool:
        """True if files are compressed or decompressed while they are copied. The name of a file decides whether it is
        (``pcopy.tasks.base.recoded_names``).
        """
        return bool(self.compress) or self.decompress

    @property
    def compares_existing(self) -> bool:
        """True for ``--existing changed``: an existing item is kept only if it equals its source in size and time, or
        (``--checksum``) in contents.
        """
        return self.existing == "changed"

    @property
    def keeps_existing(self) -> bool:
        """True if an existing item is overwritten only as ``--existing`` explicitly permits it (newer, skip or
        fail).
        """
        return self.existing in EXISTING_CHOICES_THAT_KEEP


class RemoveOptions(NamedTuple):
    """Options of ``prm``."""

    whole_directories: bool = False
    """True if a directory in the list (--from) stands for the directory and everything below it."""
    never_removed: tuple[DeviceInode, ...] = ()
    """Directories that are never removed, by whatever path the list names them."""
    missing_is_fine: bool = False
    """True if a path in the list (--from) that does not exist is not a failure."""
    counts_bytes: bool = True
    """True if the sizes of the removed files are shown. If not, most of them need not be read."""


class ChangeOptions(NamedTuple):
    """Options of ``pchmod``."""

    change: tuple[str, int, int, bytes, bytes] = ("", -1, -1, b"", b"")
    """New properties of items: a mode in the syntax of chmod(1), owner and group (-1: unchanged), an access ACL and a
    default ACL (both in the form that ``pcopy.fsio.backend.batches.SetMetadataBatch`` takes).
    """


class CompareOptions(NamedTuple):
    """Options of ``pverify`` if it compares two trees side by side. ``modify_window`` is in seconds."""

    modify_window: int = 0
    compare: int = 0
    """Bit set of the properties, such as sizes or owners, by which ``--compare`` compares two trees
    (``pcopy.tasks.compare.properties``).
    """
    by_digest: bool = False
    """True without ``--compare``: the names, types and contents are compared. Items that the backend does not find
    equal are read on both sides, and their digests are compared.
    """


class ArchiveOptions(NamedTuple):
    """Options of ``ptar``."""

    archive_file: bytes = b""
    """Path of the archive that the job creates or unpacks."""
    archive_version: tuple[int, ...] = ()
    """Inode number, size and time that the archive had when the job that reads it began. If they change, the job
    fails.
    """
    archive_contents: bytes = b""
    """Path of the decompressed archive, if the archive is a single compressed stream. Otherwise it is empty, and the
    archive itself is read.
    """
    compress_as: str = ""
    numeric_owner: bool = False
    strip_components: int = 0
    members: tuple[bytes, ...] = ()
    """Names of the members of the archive that are unpacked; empty for all members."""
    resumes: bool = False
    """True if the job continues an archive that a job that was interrupted has begun."""
    archive_interval: float = 60.0
    """Seconds between two records of how far an archive is written, from which an interrupted job can continue."""
    sparse_limit: int = 1 << 22
    """Largest number of data extents (parts between holes) that a sparse file in an archive may have to be read; 0 for
    no limit (``pcopy.archive.records.MAX_EXTENTS``).
    """


class StripeOptions(NamedTuple):
    """Options of ``pstripe``. ``stripe`` is the layout that files get; it is empty if layouts are only reported."""

    stripe: str = ""
    stripe_table: str = ""


class WalkOptions(NamedTuple):
    """Options of ``pwalk``."""

    walk: tuple[Any, ...] = ()
    """Fields of a ``pcopy.walk.walk_request.WalkRequest``."""


class BroadcastOptions(NamedTuple):
    """Options of ``pbcast``."""

    fsync: bool = False


ProgramOptions = (
    CopyOptions
    | RemoveOptions
    | ChangeOptions
    | CompareOptions
    | ArchiveOptions
    | StripeOptions
    | WalkOptions
    | BroadcastOptions
)
"""Options that only one program has. There is one class for each program that has any."""

_DEFAULT_COPY_OPTIONS = CopyOptions()
_LISTED_FIRST = (
    "preserve", "existing", "modify_window", "chunk_size", "block_size", "sync", "max_errors", "umask", "termination",
    "checksum", "inplace", "sequential", "dereference", "one_file_system", "hash", "signature", "manifest", "verify",
    "repair", "direct", "drop_cache", "dry_run", "reflink", "fsync", "stripe", "stripe_table", "stripe_affinity",
    "group_lock", "select", "list_file", "nul_separated", "itemize", "bwlimit", "oplimit",
)  # fmt: skip
"""Names of options in the order in which reports and messages list them. All other options follow."""

P = TypeVar("P", bound=ProgramOptions)


def options_by_name(options: Options, program: ProgramOptions | None) -> dict[str, Any]:
    """Return the values of ``options`` and of the options ``program``, by the names of their fields, in the order in
    which people see them.
    """
    values = {**options._asdict(), **(program._asdict() if program is not None else {})}
    return {**{name: values[name] for name in _LISTED_FIRST if name in values}, **values}


class Job(NamedTuple):
    """A job as its ranks know it.

    If ``copies`` is False, the job only reads files for their digests, and targets are not used. Each root is then a
    dataset. It is compared with the other root, or with the manifest ``against`` if one is given.

    Fields:
        name: unique name of the job, part of the names of its temporary files.
        run: number of the current run: 1 for the first start, one more for each resume.
        roots: sources and their targets.
        options: options of the user that several programs have.
        program: options of the user that only the program of this job has; None if it has none.
        copies: True if the job copies; False if it only reads.
        against: path of a manifest, or empty.
        began: start of the first run, by the clock of the destination, in nanoseconds since 1970; 0 if the job is not
            recorded for a resume.
        resumed: start of the current run, by the same clock, if it is not the first; else 0.
        own: directories of the job itself (its checkpoint) that lie in a source, as (index of the root, path below it).
            They are not copied.
        mounts: mount points that must exist below the roots, on every host and in every run.
        cut_short: True if an earlier run was killed and may have left an incomplete file under its final name.
        listed: path, on rank 0, of the list of paths to process (``pcopy.jobs.sorted_list``); empty if everything is
            processed.
        listed_record_size: number of bytes of the record that follows each path in that list
            (``pcopy.jobs.sorted_list``); 0 if the list has only paths.
        spared: items of targets that are not deleted even if the source lacks them, as (index of the root, path below
            it).
        doubted: time by the clock of the destination, in nanoseconds. Items that changed later may be the work of
            another job that has not finished, and may not be on stable storage. 0 if there is no such job.
    """

    name: str
    run: int
    roots: tuple[Root, ...]
    options: Options
    program: ProgramOptions | None = None
    copies: bool = True
    against: bytes = b""
    began: int = 0
    resumed: int = 0
    own: tuple[tuple[int, bytes], ...] = ()
    mounts: tuple[Mount, ...] = ()
    cut_short: bool = False
    listed: bytes = b""
    listed_record_size: int = 0
    spared: tuple[tuple[int, bytes], ...] = ()
    doubted: int = 0

    @property
    def compares_by_digest(self) -> bool:
        """True if two trees are compared side by side, and the digests of what is not equal (``by_digest``)."""
        return isinstance(self.program, CompareOptions) and self.program.by_digest

    @property
    def compares_properties(self) -> bool:
        """True if two trees are compared by chosen properties, without digests of directories."""
        return isinstance(self.program, CompareOptions) and not self.program.by_digest

    @property
    def copy_options(self) -> CopyOptions:
        """The options of a copy. Other programs use its code with the defaults of these options."""
        return self.program if isinstance(self.program, CopyOptions) else _DEFAULT_COPY_OPTIONS

    def program_options(self, program: type[P]) -> P:
        """Return the options of the job's program. Raise ``InvariantBroken`` if the job is not one of the program whose
        options are a ``program``.
        """
        if not isinstance(self.program, program):
            raise InvariantBroken(f"a job with {type(self.program).__name__} has no {program.__name__}")
        return self.program

    @property
    def temporary_name_id(self) -> str:
        """The part of the names of temporary files that says which job and run created them."""
        return f"{self.name}-{self.run}"


class JobCounters(NamedTuple):
    """Counters of a job: numbers of items, unless their names or descriptions say something else. Each rank has its
    own; sums over all ranks are formed on the way to rank 0.

    - found = copied + skipped + failed.
    - copied = files + directories + symlinks + special + hardlinks.
    - ``changed`` and ``vanished`` are parts of ``failed``.

    Fields:
        found_bytes: sizes of the regular files that were found.
        unscanned: directories that were found and not read yet. It is 0 when all scans have ended.
        bytes: sizes of the files that were copied completely.
        moved: bytes copied so far, including those of files that are not complete, for progress.
        excused: metadata that could not be set for lack of privilege or support, which is not a failure.
        unsynced: file systems whose last sync failed.
        for_link, for_name, for_finish, for_seal, for_repair, for_again: tasks that were deferred to a later phase. If
            the sum is 0, the phase is left out.
        extra: target directories that contain more names than their source.
        to_verify: items to be read back. An item that is copied again is counted again.
        to_verify_bytes: sizes of the files to be read back; an inode with several names counts once.
        verified: items that were read back and equal their source.
        confirmed_bytes: sizes of the files among ``verified``.
        refuted: items that were read back and differ from their source.
        verified_bytes: bytes that this run has read back.
        mended: skipped items whose metadata was updated.
        excluded: skipped items that filters exclude.
        deleted: extra items that this run deleted.
        to_delete: extra items that earlier runs of the job deleted, and those that this run counted before deletion.
            Neither ``deleted`` nor ``to_delete`` is part of ``found``.
    """

    found: int = 0
    found_bytes: int = 0
    unscanned: int = 0
    files: int = 0
    directories: int = 0
    symlinks: int = 0
    special: int = 0
    hardlinks: int = 0
    bytes: int = 0
    moved: int = 0
    skipped: int = 0
    skipped_bytes: int = 0
    deleted: int = 0
    failed: int = 0
    failed_bytes: int = 0
    changed: int = 0
    vanished: int = 0
    excused: int = 0
    warnings: int = 0
    unsynced: int = 0
    for_link: int = 0
    for_name: int = 0
    for_finish: int = 0
    for_seal: int = 0
    for_repair: int = 0
    to_verify: int = 0
    to_verify_bytes: int = 0
    verified: int = 0
    verified_bytes: int = 0
    refuted: int = 0
    extra: int = 0
    confirmed_bytes: int = 0
    mended: int = 0
    to_delete: int = 0
    for_again: int = 0
    excluded: int = 0

    @property
    def copied(self) -> int:
        """Number of items of all types that this job has created completely in the destination."""
        return self.files + self.directories + self.symlinks + self.special + self.hardlinks


class Failure(NamedTuple):
    """An item that is missing or wrong in the destination, for the user.

    Fields:
        path: path of the item as the user sees it.
        operation: name of the system call or operation that failed.
        errno: error number; 0 if no system call failed.
        message: explanation in words.
    """

    path: bytes
    operation: str
    errno: int
    message: str


class ProgressSink(Protocol):
    """Protocol of the receiver of progress and failures on rank 0, which shows them to the user. The thread that runs
    tasks calls it, so its methods must return quickly.
    """

    def receive_progress(self, phase: str, totals: JobCounters, silent: Sequence[int]) -> None:
        """Receive the latest sums over all ranks.

        Args:
            phase: name of the phase.
            totals: the sums.
            silent: numbers of the ranks that have not answered lately.
        """

    def receive_failures(self, failures: Sequence[Failure]) -> None:
        """Receive failed items, in the order in which they were reported to rank 0."""

    def receive_notice(self, text: str) -> None:
        """Receive one line for the user that does not concern a failed item."""

    def items(self, items: Sequence[PackedItemOutcomes]) -> None:
        """Receive what was done with items, if ``Options.itemize`` is set."""


class ForwardingProgressSink:
    """A sink that passes everything on to another sink.

    A subclass overrides the methods for what it also handles itself; each of them calls the inherited method.
    """

    def __init__(self, sink: ProgressSink) -> None:
        self._sink = sink

    def receive_progress(self, phase: str, totals: JobCounters, silent: Sequence[int]) -> None:
        self._sink.receive_progress(phase, totals, silent)

    def receive_failures(self, failures: Sequence[Failure]) -> None:
        self._sink.receive_failures(failures)

    def receive_notice(self, text: str) -> None:
        self._sink.receive_notice(text)

    def items(self, items: Sequence[PackedItemOutcomes]) -> None:
        self._sink.items(items)
