"""Tasks of the signature phases: entries (items with type, size and digest) are sent to the ranks that own their
directories, and the directories are digested there.

- ``StoreSignatureEntries`` keeps entries on the rank that found them until the phase SIGN.
- ``SendSignatureEntries`` sends them to the ranks that own their directories.
- ``DigestDirectoriesOfDepth`` digests the directories of one level (depth), on the ranks that own them. The deepest
  level comes first.

``SendSignatureEntries`` and ``DigestDirectoriesOfDepth`` process a part at a time, and spawn a task for the next part.
So a rank receives messages between two parts, and no messages accumulate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from pcopy.engine.backlog import SpoolFileBacklog
from pcopy.engine.messages import length_of_common_prefix
from pcopy.engine.task import Task
from pcopy.signature.items import DIRECTORY
from pcopy.signature.manifest import tree_order_key
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.distribution import (
    DEEPEST_SEPARATE_LEVEL,
    directory_depth,
    highest_levels_of_path,
    rank_digesting_directory,
)
from pcopy.tasks.base.kind import MissingDirectories, NoteDiscardedOnResume, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import SignatureEntries
from pcopy.tasks.sign.children import DatasetCounts, DirectoryChildBundle, bundle_of_directories, sum_of_counts
from pcopy.tasks.sign.signing import SignatureState

DIRECTORIES_PER_TASK = 1024
"""Maximum number of directories that one task digests. It spawns another task for the rest."""
DIFFERENCES_PER_MESSAGE = 4096
"""Number of differences between two datasets after which a task sends them and ends. The last part of a large directory
may exceed it.
"""
ROWS_PER_SLICE = 512
"""Number of entries after which a task yields, so that the rank can handle messages."""


class StoreSignatureEntries(TaskWithoutDirectory, code=50, doing="storing entries of the signature"):
    """Task that keeps ``entries`` of the signature (items with their digests) on the rank that found them, until the
    phase in which the signature is computed.
    """

    entries: SignatureEntries

    def replacement_tasks(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """When a job is resumed: yield the tasks to run in place of ``task``, which is such a task of the earlier run.
        That is the same task, so that its entries are kept. It is none if the directory was removed from the target (as
        ``missing`` says), because then the directory is copied again and gets new entries.
        """
        return iter(()) if missing.contains_dataset_path(self.entries.path) else iter((task,))

    def run(self, rank: Rank, result: TaskResult) -> None:
        found = rank.shared_instance(UnsentSignatureEntries)
        if not found.waiting.count:
            result.spawn_task(SendSignatureEntries(), owner=rank.number)
        found.store_entries(self.entries)


class SendSignatureEntries(NoteDiscardedOnResume, code=51, doing="sorting the entries of the signature"):
    """Task that sends some of this rank's entries to the ranks that own their directories, and then spawns a new one
    for the remaining entries.
    """

    def run(self, rank: Rank, result: TaskResult) -> None:
        found = rank.shared_instance(UnsentSignatureEntries)
        shares: dict[int, list[SignatureEntries]] = {}
        for packed in found.waiting.pop_frame():
            note: SignatureEntriesNote = decode_task(packed.payload)
            for entries in note.parts:
                shares.setdefault(rank_digesting_directory(entries.path, rank.size), []).append(entries)
        for owner, parts in shares.items():
            result.spawn_task(SignatureEntriesNote(tuple(_with_relative_paths(parts))), owner=owner)
        if found.waiting.count:
            result.spawn_task(SendSignatureEntries(), owner=rank.number)
        else:
            result.spawn_task(DeepestLevelNote(found.deepest_level), owner=0)


class SignatureEntriesNote(NoteDiscardedOnResume, code=52, doing="recording entries of the signature"):
    """Message with entries of some directories (items with their digests) to the rank that owns these directories. The
    path of each may be relative to the one before (``_with_relative_paths``).
    """

    parts: tuple[SignatureEntries, ...]

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        signing = rank.shared_instance(SignatureState).digester
        for entries in _with_full_paths(self.parts):
            bundle = DirectoryChildBundle(
                entries.side, entries.round, entries.names, entries.kinds, entries.sizes, entries.digests
            )
            signing.add(entries.path, bundle)
            yield None


def _with_relative_paths(parts: Iterable[SignatureEntries]) -> Iterator[SignatureEntries]:
    """Generator: yield ``parts``; if the path of one begins like the path before, only its rest follows the number of
    bytes that they have in common, and a zero byte.
    """
    before = b""
    for entries in parts:
        path, common = entries.path, length_of_common_prefix(before, entries.path)
        yield entries._replace(path=b"%d\0%b" % (common, path[common:])) if common else entries
        before = path


def _with_full_paths(parts: Iterable[SignatureEntries]) -> Iterator[SignatureEntries]:
    """Generator: yield the entries of which ``_with_relative_paths`` has made ``parts``."""
    before = b""
    for entries in parts:
        common, is_relative, rest = entries.path.partition(b"\0")
        before = before[: int(common)] + rest if is_relative else entries.path
        yield entries._replace(path=before)


class DeepestLevelNote(NoteDiscardedOnResume, code=53, doing="recording the depth of directories"):
    """Message to rank 0 with the depth of the deepest directory that a rank has found; the top directory has depth
    0.
    """

    depth: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        """Store the maximum over all ranks. The directories of that depth are digested first."""
        found = rank.shared_instance(UnsentSignatureEntries)
        found.deepest_level = max(found.deepest_level, self.depth)


class UnsentSignatureEntries:
    """The entries that this rank has found for the signature and has not yet sent to the ranks that own their
    directories.
    """

    def __init__(self, rank: Rank) -> None:
        self.waiting = SpoolFileBacklog(rank.open_spool)
        """The entries, in a temporary file if there are many."""
        self.deepest_level = 0
        """Depth of the deepest directory that has entries here, but no more than ``DEEPEST_SEPARATE_LEVEL``. On rank 0,
        after all ranks have reported: the maximum over all ranks.
        """

    def store_entries(self, entries: SignatureEntries) -> None:
        """Store ``entries`` (items with their digests) until they are sent to the ranks that own their directories."""
        self.deepest_level = max(self.deepest_level, directory_depth(highest_levels_of_path(entries.path)))
        self.waiting.append(Task((0, 0, 0), int(Phase.SIGN), encode_task(SignatureEntriesNote((entries,))), 0))

    def close(self) -> None:
        """Release the temporary file."""
        self.waiting.close()


class DigestDirectoriesOfDepth(NoteDiscardedOnResume, code=54, doing="digesting directories"):
    """Task that digests some of this rank's directories of one depth, and then spawns a new one for the remaining
    directories. In the depth ``DEEPEST_SEPARATE_LEVEL`` it also digests everything below them.
    """

    depth: int

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        sign = rank.shared_instance(SignatureState)
        if sign.current_level is None:
            sign.current_level = (
                sign.digester.digest_directories_from_depth(self.depth)
                if self.depth == DEEPEST_SEPARATE_LEVEL
                else sign.digester.digest_directories_of_depth(self.depth)
            )
        rising: defaultdict[tuple[int, bytes], list[tuple[bytes, bytes, DatasetCounts]]] = defaultdict(list)
        differences: list[tuple[str, bytes]] = []
        rows, more = 0, False
        for number, digested in enumerate(sign.current_level, 1):
            differences += digested.differences
            for side, path, digest, tally in digested.directories:
                if self.depth:
                    parent, _, name = path.rpartition(b"/")
                    rising[side, parent].append((name, digest, tally))
                else:
                    result.spawn_task(SignatureNote(side, digest, tally), owner=0)
            rows += digested.rows
            more = number == DIRECTORIES_PER_TASK or len(differences) >= DIFFERENCES_PER_MESSAGE
            if more or rows >= ROWS_PER_SLICE:
                rows = 0
                yield None
            if more:
                break
        _send_digests_to_parent_owners(rising, rank, result)
        if differences:
            result.spawn_task(DifferencesNote(tuple(differences)), owner=0)
        if more:
            result.spawn_task(self, owner=rank.number)
        else:
            sign.current_level = None


def _send_digests_to_parent_owners(
    rising: dict[tuple[int, bytes], list[tuple[bytes, bytes, DatasetCounts]]], rank: Rank, result: TaskResult
) -> None:
    """Send digested directories to the ranks that own their parent directories. ``rising`` contains name, digest and
    counts of each; its keys are the side (dataset) and the path of the parent.
    """
    shares: defaultdict[int, list[tuple[int, bytes, bytes, bytes, bytes]]] = defaultdict(list)
    for (side, parent), directories in rising.items():
        bundle = bundle_of_directories(side, directories)
        shares[rank_digesting_directory(parent, rank.size)].append(
            (side, parent, bundle.names, bundle.digests, bundle.tallies)
        )
    for owner, parts in shares.items():
        result.spawn_task(DigestedDirectoriesNote(tuple(parts)), owner=owner)


class DigestedDirectoriesNote(NoteDiscardedOnResume, code=55, doing="recording digested directories"):
    """Message with digested directories to the rank that owns their parent directories.

    ``parts``: for each parent directory its side, its path, and the columns of the directories in it: names (joined by
    slashes), digests, and what they contain (five numbers of 8 bytes each, ``DatasetCounts``).
    """

    parts: tuple[tuple[int, bytes, bytes, bytes, bytes], ...]

    def run(self, rank: Rank, result: TaskResult) -> None:
        signing = rank.shared_instance(SignatureState).digester
        for side, path, names, digests, tallies in self.parts:
            number = names.count(b"/") + 1
            signing.add_directories(
                path, DirectoryChildBundle(side, 0, names, DIRECTORY * number, bytes(8 * number), digests, tallies)
            )


class SignatureNote(NoteDiscardedOnResume, code=56, doing="recording the signature"):
    """Message to rank 0 with the digest of a whole dataset (``side`` 0 or 1), and with what it contains (``tally``: the
    fields of ``DatasetCounts``). If several ranks send such a message, the dataset is all that they contain.
    """

    side: int
    digest: bytes
    tally: tuple[int, ...]

    def run(self, rank: Rank, result: TaskResult) -> None:
        signatures, tally = rank.shared_instance(SignatureState).signatures, DatasetCounts(*self.tally)
        if self.side in signatures:
            tally = sum_of_counts((signatures[self.side][1], tally))
        signatures[self.side] = self.digest, tally


class DifferencesNote(NoteDiscardedOnResume, code=57, doing="recording differences"):
    """Message to rank 0 with differences between the two datasets: for each "changed", "missing" or "extra", and the
    path.
    """

    rows: tuple[tuple[str, bytes], ...]

    def run(self, rank: Rank, result: TaskResult) -> None:
        for kind, path in self.rows:
            rank.shared_instance(SignatureState).differences.add(tree_order_key(path), kind.encode())
