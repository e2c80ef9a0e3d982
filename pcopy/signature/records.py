"""Manifest entries as pairs of byte strings, which an ``ExternalSorter`` brings into tree order."""

from __future__ import annotations

from pcopy.signature.manifest import ROOT, Entry, order_key


def pack(entry: Entry) -> tuple[bytes, bytes]:
    """The key that sorts ``entry`` into tree order, and the rest of it: type byte, size (8 bytes), digest."""
    return order_key(entry.path), entry.kind + entry.size.to_bytes(8, "big") + entry.digest


def unpack(key: bytes, value: bytes) -> Entry:
    """The entry that ``pack`` made ``key`` and ``value`` of."""
    return Entry(value[:1], value[9:], int.from_bytes(value[1:9], "big"), key.replace(b"\0", b"/") or ROOT)
