"""Overlay file systems, as in containers: files have another device number than their directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.command import succeed
from tests.support.files import noise
from tests.support.filesystems import mounted, scratch
from tests.support.oracle import differences
from tests.support.users import require_root


@pytest.mark.parametrize("ranks", [1, 2])
def test_copies_to_and_on_an_overlay_are_equal(ranks: int) -> None:
    require_root("only root can mount an overlay")
    with scratch() as place, mounted("ext4", place) as upper:
        lower, overlay = place / "lower", place / "overlay"
        for path in (lower / "directory", overlay, upper / "upper", upper / "work"):
            path.mkdir(parents=True)
        (lower / "directory" / "small").write_bytes(b"small")
        os.link(lower / "directory" / "small", lower / "link")
        (lower / "large").write_bytes(noise(60 << 20))
        (lower / "symlink").symlink_to("large")
        layers = f"lowerdir={lower},upperdir={upper / 'upper'},workdir={upper / 'work'}"
        done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(overlay)], check=False)
        if done.returncode:
            pytest.skip("this kernel can't mount an overlay")
        try:
            check_copies(lower, overlay, ranks)
        finally:
            subprocess.run(["umount", str(overlay)], check=True)


def check_copies(lower: Path, overlay: Path, ranks: int) -> None:
    succeed(lower, overlay / "copy", "--chunk-size", "16M", ranks=ranks)
    assert differences(lower, overlay / "copy") == []
    succeed(overlay / "copy", overlay / "again", "--chunk-size", "16M", ranks=ranks)
    assert differences(lower, overlay / "again") == []
