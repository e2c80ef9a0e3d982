"""The digests that a signature can be made of.

``xxh3-128`` (XXH3, 128 bits, seed 0, big-endian) finds accidents at the speed of memory; ``blake3`` also withstands
somebody who wants two datasets to look the same. The libraries are loaded when an algorithm is asked for, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from pcopy.errors import Refused
from pcopy.named import NamedTuple
from pcopy.text import harmless

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

ALGORITHMS = ("xxh3-128", "blake3")
DEFAULT_ALGORITHM = "xxh3-128"


class Hasher(Protocol):
    """A digest of bytes that come piece by piece; ``digest`` may be asked for at any time."""

    def update(self, data: Buffer, /) -> object: ...

    def digest(self) -> bytes: ...

    def copy(self) -> Hasher: ...


class Algorithm(NamedTuple):
    """``digest`` of all bytes at once, or a ``new`` hasher for pieces; both give ``size`` bytes."""

    name: str
    size: int
    digest: Callable[[Buffer], bytes]
    new: Callable[[], Hasher]


@lru_cache(maxsize=len(ALGORITHMS))
def algorithm(name: str) -> Algorithm:
    """The algorithm called ``name``, always the same object; raises ``Refused`` for a name that is not known."""
    if name == "xxh3-128":
        import xxhash

        return Algorithm(name, 16, xxhash.xxh3_128_digest, xxhash.xxh3_128)
    if name != "blake3":
        raise Refused(f"unknown digest algorithm '{harmless(name[:64])}'; known are {', '.join(ALGORITHMS)}")
    try:
        from blake3 import blake3
    except ImportError as error:  # there are machines for which it has no wheel
        raise Refused("the digest algorithm blake3 needs the Python package blake3, which is not installed") from error

    def digest(data: Buffer) -> bytes:
        return blake3(data).digest()

    return Algorithm(name, 32, digest, blake3)
