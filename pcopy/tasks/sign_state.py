"""What one rank remembers for the signature: entries as they are found, its share of the work, the results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pcopy.engine.backlog import Backlog, SpoolFactory
from pcopy.engine.task import Task
from pcopy.signature.algorithms import Algorithm
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.codec import encode
from pcopy.tasks.phases import Phase
from pcopy.tasks.sign_values import Entries, EntriesNote
from pcopy.tasks.signing import Digested, Signing, Tally, depth_of

if TYPE_CHECKING:
    from pcopy.tasks.manifest_lines import Merging


class SignState:
    """``algorithm`` is None where no digests are wanted; ``lines``, ``compares``: see ``Signing``.

    ``against`` is the manifest that is compared with, or empty.
    """

    def __init__(
        self,
        algorithm: Algorithm | None,
        open_spool: SpoolFactory,
        *,
        lines: bool = False,
        compares: bool = False,
        against: bytes = b"",
    ) -> None:
        self._algorithm = algorithm
        self._open_spool = open_spool
        self._lines = lines
        self._compares = compares
        self._signing: Signing | None = None
        self.against = against
        self.entries = Backlog(open_spool)
        self.deepest = 0
        self.level: Iterator[Digested] | None = None
        self.sorted_lines: Iterator[tuple[bytes, bytes]] | None = None
        self.signatures: dict[int, tuple[bytes, Tally]] = {}
        """At rank 0: each side's digest and what it holds."""
        self.differences = ExternalSorter(open_spool)
        """At rank 0: what differs, by the order of paths."""
        self.merging: Merging | None = None
        self.unwritten: Exception | None = None
        """At rank 0: why the manifest could not be written."""

    def keep(self, entries: Entries) -> None:
        """Stores entries until the sign phase."""
        self.deepest = max(self.deepest, depth_of(entries.path))
        self.entries.append(Task((0, 0, 0), int(Phase.SIGN), encode(EntriesNote((entries,))), 0))

    @property
    def signing(self) -> Signing:
        """This rank's directories, from the sign phase on."""
        if self._signing is None:
            assert self._algorithm is not None
            self._signing = Signing(self._algorithm, self._open_spool, lines=self._lines, compares=self._compares)
        return self._signing

    def close(self) -> None:
        """Forgets everything, and leaves a manifest that is not complete unwritten."""
        if self.merging is not None:
            self.merging.abandon()
            self.merging = None
        if self._signing is not None:
            self._signing.close()
        self.differences.close()
        self.entries.close()
