"""The manifest: a text file with one line for each entry of a dataset, with its digest (``docs/formats/manifest.md``).

Rule: entries are in tree order, that is, a directory comes directly before its children, and children are sorted by the
bytes of their names. So a reader needs only one hasher for each level of depth. When it has read all entries of a
directory, it compares their digest with the one in the directory's entry. Thereby it detects entries that were lost,
added, moved or changed, and a file that was truncated at the end of a line. It cannot detect a changed size of an
entry, because the sizes are not part of a directory's digest.
"""

from __future__ import annotations

import os
import re
import stat
from binascii import unhexlify
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO, Self

from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.signature.algorithms import ALGORITHM_NAMES, DigestAlgorithm, digest_algorithm_named
from pcopy.signature.items import (
    DIRECTORY,
    FIFO,
    FILE,
    ROOT_PATH,
    TYPE_BYTES,
    DirectoryHasher,
    file_digest,
    special_file_digest,
)
from pcopy.signature.replacing import AnyPath, replacing_output_file
from pcopy.signature.signature_file import converting_file_errors_to_refusal, is_valid_block_size, open_regular_file
from pcopy.text import printable_path

MANIFEST_MAGIC = b"#pcopy-manifest"
"""First word of a manifest."""
MANIFEST_VERSION = b"1"
"""Version of the format, which is in the first line. A manifest with another version is refused."""
MAX_LINE_SIZE = 1 << 20
"""Maximum number of bytes of a line, including its newline. Longer lines are neither written nor read."""

_READ_SIZE = 1 << 18
"""Number of bytes of a manifest that one call reads."""
_DECIMAL_NUMBER_PATTERN = re.compile(rb"0|[1-9][0-9]{0,19}")
_HEXADECIMAL_PATTERN = re.compile(rb"[0-9a-f]+")
_NEEDS_ESCAPE = re.compile(rb"[\\\n\r]")
_ESCAPE_SEQUENCE = re.compile(rb"\\(.?)", re.DOTALL)
_ESCAPES = {b"\\": rb"\\", b"\n": rb"\n", b"\r": rb"\r"}
_UNESCAPES = {b"\\": b"\\", b"n": b"\n", b"r": b"\r"}
_FORBIDDEN_IN_PATH = re.compile(rb"[\0\r]")


class ManifestEntry(NamedTuple):
    """An entry of a manifest, which describes one item of the dataset.

    Fields:
        kind: its type byte, as in a signature (f, d, l, p, c or b).
        digest: its digest.
        size: its size in bytes; 0 unless it is a regular file.
        path: its path relative to the top directory of the dataset; ``b"."`` for the top directory itself.
    """

    kind: bytes
    digest: bytes
    size: int
    path: bytes


def looks_like_manifest(beginning: bytes) -> bool:
    """Return True if a file with this ``beginning`` is a manifest of any version."""
    return beginning.startswith(MANIFEST_MAGIC)


def tree_order_key(path: bytes) -> bytes:
    """Return a key that sorts paths into tree order: a directory directly before its children.

    In the key, slashes are replaced by NUL, which no name contains and which sorts before all other bytes.
    """
    return b"" if path == ROOT_PATH else path.replace(b"/", b"\0")


def pack_manifest_entry(entry: ManifestEntry) -> tuple[bytes, bytes]:
    """Return ``entry`` packed as a key, which sorts entries into tree order, and a value: type byte, size (8 bytes),
    digest.
    """
    return tree_order_key(entry.path), entry.kind + entry.size.to_bytes(8, "big") + entry.digest


def unpack_manifest_entry(key: bytes, value: bytes) -> ManifestEntry:
    """Return the entry that ``pack_manifest_entry`` has packed into the pair of ``key`` and ``value``."""
    return ManifestEntry(value[:1], value[9:], int.from_bytes(value[1:9], "big"), key.replace(b"\0", b"/") or ROOT_PATH)


class ManifestWriter(ExitStack):
    """Context manager that writes the manifest ``path`` completely and durably, or leaves an existing one unchanged.

    Raise ``RequestRefused`` if ``path`` exists and is not a regular file, or if an entry is too long for a line;
    ``OSError`` for errors of the system.
    """

    def __init__(
        self, path: AnyPath, algorithm: DigestAlgorithm, block_size: int, umask: int | None = None, writer: str = ""
    ) -> None:
        """Prepare the manifest; the file is created when the context is entered.

        Args:
            path: path of the manifest.
            algorithm: algorithm of the digests.
            block_size: number of bytes of a block: the contents of files were hashed block by block.
            umask: the new file has mode 0666 without these bits; None: the umask of the process.
            writer: name of the job, for the name of the temporary file; empty: none.
        """
        super().__init__()
        self._path = os.fsencode(path)
        self._header = b"%b %b %b %d\n" % (MANIFEST_MAGIC, MANIFEST_VERSION, algorithm.name.encode(), block_size)
        self._replacing = replacing_output_file(path, umask, writer)
        self._last: bytes | None = None
        self._stream: BinaryIO

    def __enter__(self) -> Self:
        self._stream = self.enter_context(self._replacing)
        self._stream.write(self._header)
        return self

    def write(self, entry: ManifestEntry) -> None:
        """Write the next entry in tree order, beginning with that of the top directory. Raise ``ValueError`` if the
        entry is out of order.
        """
        key = tree_order_key(entry.path)
        if key if self._last is None else key <= self._last:
            raise ValueError(f"{entry.path!r} is out of order")
        path = _NEEDS_ESCAPE.sub(lambda found: _ESCAPES[found[0]], entry.path)
        line = b"%b %b %d %b\n" % (entry.kind, entry.digest.hex().encode(), entry.size, path)
        if len(line) > MAX_LINE_SIZE:
            raise RequestRefused(
                f"{printable_path(self._path)} cannot hold a path of {len(entry.path)} bytes: "
                f"a line may have at most {MAX_LINE_SIZE}",
                path=self._path,
            )
        self._stream.write(line)
        self._last = key


class ManifestReader:
    """Reads the manifest ``path``: an iterable of its entries, in tree order. The entries are verified while they are
    read.

    Only when a manifest was read to its end, it has been verified completely. If it cannot be read or is invalid,
    ``RequestRefused`` is raised, with a text of one line that names the path and the number of the line.
    """

    def __init__(self, path: AnyPath) -> None:
        """Read and check the first line, which has the algorithm and the block size."""
        self._path = path
        self.algorithm: DigestAlgorithm
        self.block_size: int
        with converting_file_errors_to_refusal("manifest", path), open_regular_file(path) as stream:
            self.algorithm, self.block_size = _read_first_line(stream)

    def __iter__(self) -> Iterator[ManifestEntry]:
        with (
            converting_file_errors_to_refusal("manifest", self._path),
            open_regular_file(self._path, _READ_SIZE) as stream,
        ):
            found = _read_first_line(stream)
            if found != (self.algorithm, self.block_size):
                raise ValueError("line 1: another manifest has replaced this one since it was opened")
            checker = _EntryVerifier(self.algorithm)
            for line in _remaining_lines(stream, 2):
                yield checker.parse_entry(line)
            checker.verify_remaining_directories()

    def root_entry(self) -> ManifestEntry:
        """Return the first entry, that of the top directory. No other entry is read or verified."""
        return next(iter(self))


def _read_first_line(stream: BinaryIO) -> tuple[DigestAlgorithm, int]:
    """Return the algorithm and the block size (in bytes) that the first line of the manifest states. Raise
    ``ValueError`` if it is invalid.
    """
    fields = next(_remaining_lines(stream, 1), b"").split(b" ")
    if fields[0] != MANIFEST_MAGIC or len(fields) < 2:
        raise ValueError(f"line 1: it does not begin with {MANIFEST_MAGIC.decode()} and a version")
    if fields[1] != MANIFEST_VERSION:
        known = f"this pcopy knows version {MANIFEST_VERSION.decode()}"
        if _DECIMAL_NUMBER_PATTERN.fullmatch(fields[1]) and int(fields[1]) > int(MANIFEST_VERSION):
            raise ValueError(
                f"line 1: it has version {fields[1].decode()} of the format, but {known}: use a newer pcopy"
            )
        raise ValueError(f"line 1: there is no such version of the format; {known}")
    if len(fields) != 4:
        raise ValueError("line 1: an algorithm and a block size should follow the version, and nothing else")
    name = fields[2].decode("ascii", "replace")
    if name not in ALGORITHM_NAMES:
        raise ValueError(f"line 1: its algorithm is none of {', '.join(ALGORITHM_NAMES)}")
    if not _DECIMAL_NUMBER_PATTERN.fullmatch(fields[3]) or not is_valid_block_size(int(fields[3])):
        raise ValueError(
            "line 1: its block size must be a power of two from 64 KiB to 4 EiB, written in decimal digits"
        )
    return digest_algorithm_named(name), int(fields[3])


def _remaining_lines(stream: BinaryIO, number: int) -> Iterator[bytes]:
    """Generator: yield the remaining lines of the manifest without their newlines. ``number`` is the line number of the
    next one, for error messages. Raise ``ValueError`` if a line is too long or has no newline.
    """
    while line := stream.readline(MAX_LINE_SIZE + 1):
        if len(line) > MAX_LINE_SIZE:
            raise ValueError(f"line {number} has more than {MAX_LINE_SIZE} bytes, which is the limit")
        if line[-1:] != b"\n":
            raise ValueError(f"line {number} has no end: the manifest is truncated")
        yield line[:-1]
        number += 1


class _DirectoryBeingVerified(NamedTuple):
    """A directory of a manifest whose entry has been read, while the entries of its children are being read.

    Fields:
        hasher: computes the digest of the directory from its children.
        digest: the digest in the entry of the directory.
        line: number of the line of its entry.
        parent_length: number of bytes of the path of its parent.
    """

    hasher: DirectoryHasher
    digest: bytes
    line: int
    parent_length: int


class _EntryVerifier:
    """Parses the lines of a manifest after the first, and verifies that each entry is valid after those before it.
    Memory grows only with the depth of the tree.
    """

    def __init__(self, algorithm: DigestAlgorithm) -> None:
        self._algorithm = algorithm
        self._digit_count = 2 * algorithm.digest_size
        self._empty_file_digest = file_digest(algorithm, 0, algorithm.digest(b""))
        self._fifo_digest = special_file_digest(algorithm, stat.S_IFIFO, 0)
        self._line = 1
        self._open: list[_DirectoryBeingVerified] = []
        self._directory = b""

    def parse_entry(self, line: bytes) -> ManifestEntry:
        """Return the entry in the next ``line``. Raise ``ValueError`` if the entry is invalid, or may not follow those
        before.
        """
        self._line += 1
        try:
            entry = self._parse_line(line)
            self._add_to_tree(entry)
        except ValueError as error:
            raise ValueError(f"line {self._line}: {error}") from None
        return entry

    def verify_remaining_directories(self) -> None:
        """Verify the digests of the remaining directories after the last line. Raise ``ValueError`` if entries are
        missing.
        """
        if self._line == 1:
            raise ValueError("line 1: no entry follows: the manifest is truncated")
        try:
            while self._open:
                self._verify_completed_directory()
        except ValueError as error:
            raise ValueError(f"line {self._line}: {error}") from None

    def _parse_line(self, line: bytes) -> ManifestEntry:
        """Return the entry in a line, without checking whether it may follow those before. Raise ``ValueError`` if it
        is invalid.
        """
        fields = line.split(b" ", 3)
        if len(fields) != 4:
            raise ValueError("the line does not consist of type, digest, size and path")
        kind, digits, number, path = fields
        if kind not in TYPE_BYTES:
            raise ValueError("its type is none of f, d, l, p, c and b")
        if len(digits) != self._digit_count or not _HEXADECIMAL_PATTERN.fullmatch(digits):
            raise ValueError(f"its digest does not consist of {self._digit_count} lower-case hexadecimal digits")
        if not _DECIMAL_NUMBER_PATTERN.fullmatch(number) or (size := int(number)) >> 64:
            raise ValueError("its size is not a whole number in decimal digits")
        if _FORBIDDEN_IN_PATH.search(path):
            raise ValueError("its path holds a carriage return or a NUL")
        if b"\\" in path:
            path = _ESCAPE_SEQUENCE.sub(_unescaped_character, path)
        entry = ManifestEntry(kind, unhexlify(digits), size, path)
        if kind != FILE and size:
            raise ValueError("its size must be 0, because the item is not a regular file")
        if (kind == FILE and (entry.digest == self._empty_file_digest) == bool(size)) or (
            kind == FIFO and entry.digest != self._fifo_digest
        ):
            raise ValueError("its digest does not fit its type and size: the manifest is damaged")
        return entry

    def _add_to_tree(self, entry: ManifestEntry) -> None:
        """Check that ``entry`` may follow the entries before it, and add its digest to that of its directory. Raise
        ``ValueError`` if it may not.
        """
        path = entry.path
        if self._line == 2:
            if path != ROOT_PATH:
                raise ValueError("the first entry is not the root, '.'")
            path = b""
        else:
            directory, slash, name = path.rpartition(b"/")
            if not name or name in (b".", b"..") or (slash and not directory):
                raise ValueError("its path is not that of an item below the root")
            while self._open and self._directory != directory:
                self._verify_completed_directory()
            if not self._open:
                raise ValueError(
                    f"the directory of {printable_path(path)} is not listed, or entries outside of that "
                    "directory are listed between the two"
                )
            try:
                self._open[-1].hasher.add_child(entry.kind, name, entry.digest)
            except ValueError:
                raise ValueError(
                    f"{printable_path(path)} is out of order, or listed twice: names must be sorted by bytes"
                ) from None
        if entry.kind == DIRECTORY:
            hasher = DirectoryHasher(self._algorithm)
            self._open.append(_DirectoryBeingVerified(hasher, entry.digest, self._line, len(self._directory)))
            self._directory = path

    def _verify_completed_directory(self) -> None:
        """All entries in the directory that was entered last have been read: compare their digest with the one in the
        directory's own entry.

        Raise ``ValueError`` if the two differ.
        """
        done = self._open.pop()
        if done.hasher.digest() != done.digest:
            raise ValueError(
                f"the digest of {printable_path(self._directory or ROOT_PATH)} (line {done.line}) does not match its "
                "entries: the manifest is damaged or truncated"
            )
        self._directory = self._directory[: done.parent_length]


def _unescaped_character(found: re.Match[bytes]) -> bytes:
    """Return the character that the escape sequence ``found`` in a path stands for. Raise ``ValueError`` if the
    sequence is unknown.
    """
    try:
        return _UNESCAPES[found[1]]
    except KeyError:
        raise ValueError("its path holds a backslash that is not followed by a backslash, n or r") from None
