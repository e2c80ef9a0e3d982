"""Mirrors of small trees (``pcopy --mirror``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.support.command import Argument, succeed, summary
from tests.support.files import write


def mirror(area: Path, *options: Argument, **more: Any) -> dict[str, Any]:
    """Run pcopy to make ``copy`` equal to ``source`` and return its summary."""
    return summary(succeed("--json", "--mirror", *options, f"{area}/source/", area / "copy", **more))


def make_trees(area: Path) -> None:
    """Create ``source`` and its copy, which has 7 additional items: a link, a file, and a directory with four items."""
    for number in range(5):
        write(area / f"source/{number}/file", b"content")
        write(area / f"source/{number}/inner/file", b"content")
    succeed(f"{area}/source/", area / "copy")
    write(area / "outside/precious", b"precious")
    (area / "copy/link").symlink_to(area / "outside")
    write(area / "copy/2/inner/extra", b"extra")
    write(area / "copy/extra/deep/file", b"extra")
    os.mkfifo(area / "copy/extra/fifo")
    (area / "copy/extra/link").symlink_to(area / "outside/precious")
