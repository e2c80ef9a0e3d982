"""Writing or checking of files that are generated from the code, for the scripts that generate them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

DARK_STYLE = "<style>@media (prefers-color-scheme: dark) { svg { filter: invert(0.88) hue-rotate(180deg) } }</style>"
"""The element that makes a picture with a transparent background and dark lines readable on a dark page."""

ROOT = Path(__file__).resolve().parents[1]


def write_or_check(files: Mapping[Path, str]) -> int:
    """Write the files whose contents have changed. With ``--check``, only print their names. Return the exit status.

    ``files`` are the expected texts by path. The status is 1 if ``--check`` finds an outdated file.
    """
    outdated = [file for file, text in files.items() if not file.exists() or file.read_text() != text]
    for file in outdated:
        if "--check" in sys.argv[1:]:
            print(f"{file.relative_to(ROOT)} is outdated")
        else:
            file.parent.mkdir(exist_ok=True)
            file.write_text(files[file])
    return 1 if outdated and "--check" in sys.argv[1:] else 0
