"""The tasks of the sign phase as values. ``side`` tells datasets apart that are compared: 0, and 1 for the second.

``StoredEntries`` wait for the phase where they were found; ``SendEntries`` sends what a rank knows to the owners of the
directories (``EntriesNote``). Then, from the deepest level up, ``DigestLevel`` digests an owner's directories of one
level and tells the owners of those around them (``DirectoriesNote``); the uppermost goes to rank 0
(``SignatureNote``). For a manifest, rank 0 asks every rank for its sorted lines, part by part (``SendLines``,
``LinesNote``).
"""

from __future__ import annotations

from typing import NamedTuple


class Entries(NamedTuple):
    """Entries of the directory ``path`` of a dataset; the name ``b""``: the directory itself exists.

    ``kinds`` holds a type byte each, ``sizes`` 8 bytes each, ``digests`` one digest each. Of several entries of one
    name that of the last ``round`` is meant.
    """

    side: int
    path: bytes
    names: bytes
    kinds: bytes
    sizes: bytes
    digests: bytes
    round: int


class StoredEntries(NamedTuple):
    """Entries that wait for the sign phase at the rank where they were found."""

    entries: Entries


class SendEntries(NamedTuple):
    """The next part of this rank's entries is due."""


class EntriesNote(NamedTuple):
    """Entries for the owner of their directories."""

    parts: tuple[Entries, ...]


class DeepestNote(NamedTuple):
    """Tells rank 0 the depth of the deepest directory that a rank knows; the root has depth 0."""

    depth: int


class DigestLevel(NamedTuple):
    """The next part of the directories of one level is due."""

    depth: int


class DirectoriesNote(NamedTuple):
    """Digested directories: (side, path, packed entry) each, for the owner of the directory around them."""

    rows: tuple[tuple[int, bytes, bytes], ...]


class SignatureNote(NamedTuple):
    """Tells rank 0 the digest of a whole dataset, and its counts (``pcopy.tasks.signing.Tally``)."""

    side: int
    digest: bytes
    tally: tuple[int, ...]


class DifferencesNote(NamedTuple):
    """Tells rank 0 what differs between the two sides: (what, path) each."""

    rows: tuple[tuple[str, bytes], ...]


class SendLines(NamedTuple):
    """Rank 0 wants the next part of this rank's sorted lines."""


class LinesNote(NamedTuple):
    """A part of ``rank``'s lines: (key, packed entry) each; ``last`` if there are no more."""

    rank: int
    rows: tuple[tuple[bytes, bytes], ...]
    last: bool


class WriteManifest(NamedTuple):
    """Rank 0 begins to ask for lines."""


class ReadManifest(NamedTuple):
    """Rank 0 takes the entries of the manifest that the other side is to be compared with."""
