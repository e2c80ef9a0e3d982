"""The dataset signature, implemented from its definition: simple, slow, and without code of pcopy."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

import xxhash

MIB = 1 << 20
Digest = Callable[[bytes], bytes]


def xxh3_128(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def signature(path: bytes, block_size: int = 4 * MIB, digest: Digest = xxh3_128) -> bytes:
    """Return the signature of the item at ``path``, which is not followed."""
    return entries(path, block_size, digest)[b"."][1]


def entries(path: bytes, block_size: int = 4 * MIB, digest: Digest = xxh3_128) -> dict[bytes, tuple[bytes, bytes, int]]:
    """Yield the type byte, digest and size (0 for all but regular files) of the item at ``path`` and of everything
    below, in tree order.
    """
    found = os.lstat(path)
    mode = found.st_mode
    if stat.S_ISREG(mode):
        with open(path, "rb") as file:
            data = file.read()
        return {b".": (b"f", of_file(data, block_size, digest), len(data))}
    if stat.S_ISLNK(mode):
        return {b".": (b"l", digest(b"\x04" + os.readlink(path)), 0)}
    if stat.S_ISFIFO(mode):
        return {b".": (b"p", digest(b"\x05"), 0)}
    device = u32(os.major(found.st_rdev)) + u32(os.minor(found.st_rdev))
    if stat.S_ISCHR(mode):
        return {b".": (b"c", digest(b"\x06" + device), 0)}
    if stat.S_ISBLK(mode):
        return {b".": (b"b", digest(b"\x07" + device), 0)}
    assert stat.S_ISDIR(mode)
    below: dict[bytes, tuple[bytes, bytes, int]] = {}
    listed = b"\x03"
    for name in sorted(os.listdir(path)):
        child = path + b"/" + name
        if stat.S_ISSOCK(os.lstat(child).st_mode):
            continue
        inner = entries(child, block_size, digest)
        kind, value, _ = inner[b"."]
        listed += kind + u32(len(name)) + name + value
        for inner_path, entry in inner.items():
            below[name if inner_path == b"." else name + b"/" + inner_path] = entry
    return {b".": (b"d", digest(listed), 0), **below}


def of_file(data: bytes, block_size: int, digest: Digest = xxh3_128) -> bytes:
    """Return the digest of a regular file that contains ``data``."""
    return digest(b"\x02" + len(data).to_bytes(8, "big") + content_root(data, block_size, digest))


def content_root(data: bytes, block_size: int, digest: Digest = xxh3_128) -> bytes:
    return root_of([digest(data[at : at + block_size]) for at in range(0, len(data), block_size)], digest)


def root_of(blocks: list[bytes], digest: Digest = xxh3_128) -> bytes:
    if not blocks:
        return digest(b"")
    if len(blocks) == 1:
        return blocks[0]
    first = 1
    while first * 2 < len(blocks):
        first *= 2
    return digest(b"\x01" + root_of(blocks[:first], digest) + root_of(blocks[first:], digest))


def manifest(path: bytes, block_size: int = 4 * MIB) -> bytes:
    """Return the manifest of the item at ``path``, with the default algorithm."""
    lines = [b"#pcopy-manifest 1 xxh3-128 %d\n" % block_size]
    for inner, (kind, value, size) in entries(path, block_size).items():
        name = inner.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
        lines.append(kind + b" " + value.hex().encode() + b" " + str(size).encode() + b" " + name + b"\n")
    return b"".join(lines)
