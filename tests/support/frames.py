"""Frames of the files in a job directory, by docs/formats/checkpoint.md, and a malicious pickle."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any


def framed(*payloads: bytes) -> bytes:
    parts = []
    for payload in payloads:
        length = len(payload).to_bytes(8, "big")
        parts += [length, hashlib.blake2b(length + payload, digest_size=16).digest(), payload]
    return b"".join(parts)


class Evil:
    """An object whose pickle runs a command when any reader except one of primitives reads it."""

    def __init__(self, proof: Path) -> None:
        self._command = f"touch {proof}"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self._command,)
