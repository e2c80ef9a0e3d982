"""Tasks of the manifest: rank 0 merges the sorted lines of all ranks into the file. Some lines of each rank are in its
memory.

Rank 0 requests the next lines from a rank when it has written the last one that it had of that rank; ranks send nothing
without a request. ``ReadManifest`` does the reverse: the entries of a manifest become the second side of a comparison.
"""

from __future__ import annotations

from collections import defaultdict

from pcopy.errors import RequestRefused
from pcopy.signature.items import DIRECTORY, ROOT_PATH
from pcopy.signature.manifest import ManifestEntry, ManifestReader, ManifestWriter
from pcopy.tasks.base.hashing import UNKNOWN_VERSION
from pcopy.tasks.base.item_columns import ItemColumns
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import NoteDiscardedOnResume, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.sign.digest_level import UnsentSignatureEntries
from pcopy.tasks.sign.signing import ManifestLine, ManifestMerger, SignatureState

LINES_PER_MESSAGE = 4096
"""Number of lines in one message."""
PATH_BYTES_PER_BATCH = 1 << 22
"""Bytes of the paths of lines from which on no further line is added to a message, or to the lines that are stored
together while a manifest is read. (A single path may have 1 MiB.)
"""
LINES_PER_SLICE = 64
"""Number of lines after which a task yields, so that rank 0 can handle messages."""


class WriteManifest(NoteDiscardedOnResume, code=60, doing="writing the manifest"):
    """Task that creates the manifest on rank 0, and requests the first lines from all ranks."""

    def run(self, rank: Rank, result: TaskResult) -> None:
        hashing, sign, options = rank.job_item_hasher, rank.shared_instance(SignatureState), rank.options
        writer = ManifestWriter(
            options.manifest, hashing.algorithm, hashing.block_size, options.umask, rank.job.temporary_name_id
        )
        digest, tally = sign.signatures[0]
        try:
            writer.__enter__()
            merging = sign.merge = ManifestMerger(writer, rank.size)
            if tally.directories:
                writer.write(ManifestEntry(DIRECTORY, digest, 0, ROOT_PATH))
        except (OSError, RequestRefused) as error:
            _abandon_manifest(rank, error)
            return
        for number in merging.take_ranks_to_ask():
            result.spawn_task(SendManifestLines(), owner=number)


class SendManifestLines(NoteDiscardedOnResume, code=58, doing="sorting the lines of the manifest"):
    """Task that sends the next part of this rank's sorted lines to rank 0, which has requested it."""

    def run(self, rank: Rank, result: TaskResult) -> None:
        sign = rank.shared_instance(SignatureState)
        if sign.sorted_lines is None:
            assert sign.digester.manifest_lines is not None
            sign.sorted_lines = sign.digester.manifest_lines.sorted()
        rows, size, is_last = list[ManifestLine](), 0, True
        for row in sign.sorted_lines:
            rows.append(row)
            size += len(row[0])
            if len(rows) == LINES_PER_MESSAGE or size >= PATH_BYTES_PER_BATCH:
                is_last = False
                break
        result.spawn_task(ManifestLinesNote(rank.number, tuple(rows), is_last), owner=0)


class ManifestLinesNote(NoteDiscardedOnResume, code=59, doing="writing lines of the manifest"):
    """Message to rank 0 with some lines of the manifest from the rank ``rank``, each as (key, packed entry).
    ``is_last`` is True if that rank has no more.
    """

    rank: int
    rows: tuple[ManifestLine, ...]
    is_last: bool

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Add the lines to those of the other ranks; write those that are next in the order, and request more from
        ranks of which none is left.
        """
        sign = rank.shared_instance(SignatureState)
        merging = sign.merge
        if merging is None:  # Writing has failed; the lines are discarded.
            return
        merging.add_lines(self.rank, self.rows, self.is_last)
        try:
            for number, _ in enumerate(merging.write_available_lines()):
                if not number % LINES_PER_SLICE:
                    yield None
            if merging.is_done:
                merging.complete_manifest_file()
                sign.merge = None
        except (OSError, RequestRefused) as error:
            _abandon_manifest(rank, error)
            return
        for number in merging.take_ranks_to_ask():
            result.spawn_task(SendManifestLines(), owner=number)


def _abandon_manifest(rank: Rank, error: Exception) -> None:
    """Stop writing the manifest because of ``error``, and remove the incomplete file. An existing manifest remains
    unchanged.
    """
    sign = rank.shared_instance(SignatureState)
    merging, sign.merge = sign.merge, None
    sign.manifest_error = error
    if merging is not None:
        merging.abandon_incomplete_manifest()


class ReadManifest(TaskWithoutDirectory, code=61, doing="reading the manifest", is_note=False):
    """Task of rank 0 that reads the manifest with which a dataset is compared. Its entries become those of the second
    dataset (side 1).
    """

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Read all entries of the manifest, and store them by directory, as if this rank had found them in a dataset. A
        damaged manifest stops the job.
        """
        found: defaultdict[bytes, ItemColumns] = defaultdict(ItemColumns)
        size = 0
        try:
            for number, entry in enumerate(ManifestReader(rank.job.against), 1):
                if rank.shared_instance(JobFilter).selects_manifest_entry(entry.path, entry.kind, entry.size):
                    directory, _, name = entry.path.rpartition(b"/")
                    if entry.kind == DIRECTORY:
                        directory, name = b"" if entry.path == ROOT_PATH else entry.path, b""
                    found[directory].add_file(name, UNKNOWN_VERSION, entry.size, entry.digest, 0, entry.kind)
                    size += len(entry.path)
                if size >= PATH_BYTES_PER_BATCH or not number % LINES_PER_MESSAGE:
                    _store_manifest_entries(rank, found)
                    size = 0
                    yield None
        except RequestRefused as refusal:
            rank.request_stop(str(refusal))
        _store_manifest_entries(rank, found)


def _store_manifest_entries(rank: Rank, found: dict[bytes, ItemColumns]) -> None:
    """Store the entries ``found`` (by directory) as those of side 1, and clear ``found``. They are sent to the ranks
    that own their directories in the phase in which the signature is computed.
    """
    for path, gathered in found.items():
        rank.shared_instance(UnsentSignatureEntries).store_entries(gathered.signature_entries(1, path, 0))
    found.clear()
