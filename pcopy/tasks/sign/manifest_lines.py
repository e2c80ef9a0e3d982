"""Tasks of the manifest: rank 0 merges the sorted lines of all ranks into the file, with one part of each rank's lines
in memory.

It requests the next part from a rank when it has written the last one; ranks send nothing without a request.
``ReadManifest`` does the reverse: the entries of a manifest become the second side of a comparison.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice

from pcopy.errors import Refused
from pcopy.signature.items import DIRECTORY, ROOT
from pcopy.signature.manifest import Entry, ManifestReader, ManifestWriter
from pcopy.tasks.base.gathered import Gathered
from pcopy.tasks.base.hashing import NO_VERSION
from pcopy.tasks.base.kind import Again, Note, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.sign.digest_level import FoundEntries
from pcopy.tasks.sign.signing import Line, Merging, SignState

LINES_AT_ONCE = 4096
"""Number of lines in one message."""
BYTES_AT_ONCE = 1 << 22
"""Total length of the paths of lines that are read from a manifest before they are stored. A single line may have 1
MiB.
"""
LINES_PER_SLICE = 64
"""Number of lines after which the task yields, so that rank 0 can handle messages."""


class WriteManifest(Again, code=60, doing="writing the manifest"):
    """Creates the manifest on rank 0, and requests the first lines from all ranks."""

    def run(self, rank: Rank, result: Result) -> None:
        hashing, sign, options = rank.hashing, rank.own(SignState), rank.options
        writer = ManifestWriter(options.manifest, hashing.algorithm, hashing.block_size, options.umask, rank.job.writer)
        digest, tally = sign.signatures[0]
        try:
            writer.__enter__()
            merging = sign.merging = Merging(writer, rank.size)
            if tally.directories:
                writer.write(Entry(DIRECTORY, digest, 0, ROOT))
        except (OSError, Refused) as error:
            _give_up(rank, error)
            return
        for number in merging.to_ask():
            result.spawn(SendLines(), owner=number)


class SendLines(Again, code=58, doing="sorting the lines of the manifest"):
    """Sends the next part of this rank's sorted lines to rank 0, which has requested it."""

    def run(self, rank: Rank, result: Result) -> None:
        sign = rank.own(SignState)
        if sign.sorted_lines is None:
            assert sign.signing.lines is not None
            sign.sorted_lines = sign.signing.lines.sorted()
        rows = tuple(islice(sign.sorted_lines, LINES_AT_ONCE))
        result.spawn(LinesNote(rank.number, rows, len(rows) < LINES_AT_ONCE), owner=0)


class LinesNote(Again, code=59, doing="writing lines of the manifest"):
    """Delivers a part of the lines of ``rank`` to rank 0: (key, packed entry) each. ``last`` is True if no
    more follow.
    """

    rank: int
    rows: tuple[Line, ...]
    last: bool

    def run(self, rank: Rank, result: Result) -> Steps:
        """Write the lines that can be written now, and request more."""
        sign = rank.own(SignState)
        merging = sign.merging
        if merging is None:  # Writing has failed; the lines are discarded.
            return
        merging.take(self.rank, self.rows, self.last)
        try:
            for number, _ in enumerate(merging.write()):
                if not number % LINES_PER_SLICE:
                    yield None
            if merging.is_done:
                merging.finish()
                sign.merging = None
        except (OSError, Refused) as error:
            _give_up(rank, error)
            return
        for number in merging.to_ask():
            result.spawn(SendLines(), owner=number)


def _give_up(rank: Rank, error: Exception) -> None:
    """Stop writing the manifest after an error. An existing manifest remains unchanged."""
    sign = rank.own(SignState)
    merging, sign.merging = sign.merging, None
    sign.unwritten = error
    if merging is not None:
        merging.abandon()


class ReadManifest(Note, code=61, doing="reading the manifest", is_note=False):
    """Reads, on rank 0, the manifest with which a dataset is compared."""

    def run(self, rank: Rank, result: Result) -> Steps:
        """Store all entries of the file, in batches per directory. A damaged file stops the job."""
        found: defaultdict[bytes, Gathered] = defaultdict(Gathered)
        size = 0
        try:
            for number, entry in enumerate(ManifestReader(rank.job.against), 1):
                if rank.own(Selected).takes_listed(entry.path, entry.kind, entry.size):
                    directory, _, name = entry.path.rpartition(b"/")
                    if entry.kind == DIRECTORY:
                        directory, name = b"" if entry.path == ROOT else entry.path, b""
                    found[directory].add_file(name, NO_VERSION, entry.size, entry.digest, 0, entry.kind)
                    size += len(entry.path)
                if size >= BYTES_AT_ONCE or not number % LINES_AT_ONCE:
                    _keep(rank, found)
                    size = 0
                    yield None
        except Refused as refusal:
            rank.stop(str(refusal))
        _keep(rank, found)


def _keep(rank: Rank, found: dict[bytes, Gathered]) -> None:
    """Store the entries as those of side 1, and clear ``found``."""
    for path, gathered in found.items():
        rank.own(FoundEntries).keep(gathered.entries(1, path, 0))
    found.clear()
