"""Verification does not change the access times of symbolic links."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.command import succeed
from tests.support.filesystems import mounted


def test_verify_keeps_the_access_times_of_copied_links(tmp_path: Path) -> None:
    with mounted("tmpfs", tmp_path, 64 << 20, "strictatime") as place:
        (place / "source").mkdir()
        os.symlink("somewhere", place / "source/link")
        (place / "source/file").write_bytes(b"file")
        os.utime(place / "source/link", ns=(10**18 + 1, 10**18 + 2), follow_symlinks=False)
        before = {}
        for name in ("plain", "verified"):
            options = ["--verify"] if name == "verified" else []
            times = os.lstat(place / "source/link")
            succeed(*options, "-T", place / "source", place / name)
            copied = os.lstat(place / name / "link")
            assert copied.st_mtime_ns == 10**18 + 2
            before[name] = (copied.st_atime_ns, times.st_atime_ns)
        assert [atime for atime, _ in before.values()] == [atime for _, atime in before.values()]
