"""The digest algorithms that a signature can use.

``xxh3-128`` (XXH3, 128 bits, seed 0, big-endian) detects accidental changes at the speed of memory. ``blake3`` also
withstands an attacker who wants to make two datasets with the same signature. The library of an algorithm is imported
when the algorithm is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.text import printable_text

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

ALGORITHM_NAMES = ("xxh3-128", "blake3")
"""Names of the algorithms, in options and files."""
DEFAULT_ALGORITHM = "xxh3-128"
"""Algorithm that is used if the user does not choose one."""


class Hasher(Protocol):
    """Protocol of an object, as of hashlib, that computes the digest of bytes which are passed to it piece by piece.

    ``digest`` returns the digest of all bytes so far and may be called at any time; more bytes may follow.
    """

    def update(self, data: Buffer, /) -> object: ...

    def digest(self) -> bytes: ...

    def copy(self) -> Hasher: ...


class DigestAlgorithm(NamedTuple):
    """A digest algorithm.

    Fields:
        name: its name in options and files.
        digest_size: number of bytes of a digest.
        digest: returns the digest of bytes that are in memory.
        new_hasher: returns a hasher for bytes that come in pieces.
    """

    name: str
    digest_size: int
    digest: Callable[[Buffer], bytes]
    new_hasher: Callable[[], Hasher]


@lru_cache(maxsize=len(ALGORITHM_NAMES))
def digest_algorithm_named(name: str) -> DigestAlgorithm:
    """Return the digest algorithm called ``name``; for each name always the same object.

    Raise ``RequestRefused`` if the name is unknown, or if the algorithm's library is not installed.
    """
    if name == "xxh3-128":
        import xxhash

        return DigestAlgorithm(name, 16, xxhash.xxh3_128_digest, xxhash.xxh3_128)
    if name != "blake3":
        raise RequestRefused(
            f"unknown digest algorithm '{printable_text(name[:64])}'; known are {', '.join(ALGORITHM_NAMES)}"
        )
    try:
        from blake3 import blake3
    except ImportError as error:  # the package has no wheels for some machines
        raise RequestRefused(
            "the digest algorithm blake3 needs the Python package blake3: pip install blake3"
        ) from error

    def digest(data: Buffer) -> bytes:
        return blake3(data).digest()

    return DigestAlgorithm(name, 32, digest, blake3)
