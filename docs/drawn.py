"""Keeps files that are drawn from the code; used by the scripts that draw them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def keep(files: Mapping[Path, str]) -> int:
    """Writes those that are old; with ``--check`` none, but their names. Returns the exit status."""
    old = [file for file, text in files.items() if not file.exists() or file.read_text() != text]
    for file in old:
        if "--check" in sys.argv[1:]:
            print(f"{file.relative_to(ROOT)} is old")
        else:
            file.parent.mkdir(exist_ok=True)
            file.write_text(files[file])
    return 1 if old and "--check" in sys.argv[1:] else 0
