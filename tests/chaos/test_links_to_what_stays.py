"""A skipped file gets hard links from the job, which changes its ctime; it is still not treated as created by the
job."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from pcopy.fsio.identity import birth_time
from tests.chaos.prepared import OLD_ENOUGH
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import Fault
from tests.support.filesystems import Place

INCOMPLETE = 1
SIZES = {"small": 10, "large": 9 << 20}


def has_birth(directory: Path) -> bool:
    descriptor = os.open(directory, os.O_PATH)
    try:
        return birth_time(descriptor) > 0
    finally:
        os.close(descriptor)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("kind", ["ext4", "ext4-128"])
@pytest.mark.parametrize("options", [("skip",), ("newer",), ("changed",), ("skip", "--inplace")], ids=" ".join)
def test_skipped_file_is_not_treated_as_created_by_job(
    on: Place, area: Path, kind: str, options: tuple[str, ...]
) -> None:
    """The job was killed after it had created the links and before it recorded them."""
    place = on(kind)
    assert has_birth(place) == (kind == "ext4")
    source, copy, env = place / "source", place / "copy", {"XDG_STATE_HOME": str(area / "state")}
    later = 10 if "newer" in options else 0
    for tree, byte, mtime in ((source, b"n", 1_000_000_000), (copy, b"o", 1_000_000_000 + later)):
        tree.mkdir()
        for name, size in SIZES.items():
            (tree / name).write_bytes(byte * size)
            (tree / name).chmod(0o640)
            os.utime(tree / name, (mtime, mtime))
    for name in SIZES:
        (source / name).chmod(0o600)
        os.link(source / name, source / f"{name}, too")
    (source / "failing").symlink_to("nowhere")
    time.sleep(OLD_ENOUGH)
    fault = Fault(area / "trace", ["symlinkat"], None, "EIO")
    words: list[Argument] = ["--json", "--chunk-size", "4M", "--existing", *options]
    run = pcopy(*words, "-T", source, copy, ranks=2, env=env, wrap=fault.wrap())
    assert (run.returncode, summary(run)["failed"]) == (INCOMPLETE, 1), show(run)
    for facts in area.glob("state/pcopy/*/run-1/facts-*"):
        facts.unlink()
    reported = summary(succeed("--resume", "--json", ranks=2, env=env))
    compared = options == ("changed",)  # the other policies keep files that were not compared
    # Without a birth time the file may be a half-written one of the job.
    again = compared and kind == "ext4-128"
    for name, size in SIZES.items():
        assert (copy / name).read_bytes() == (b"n" if again else b"o") * size
        assert (copy / name).stat().st_mode & 0o7777 == (0o600 if compared else 0o640)
        assert (copy / name).samefile(copy / f"{name}, too") == compared
        assert (copy / f"{name}, too").read_bytes() == (b"o" if compared and not again else b"n") * size
    counted = (reported["found"], reported["symlinks"], reported["hardlinks"], reported["files"], reported["skipped"])
    # A named item without a record is treated as the user's if the policy replaces nothing.
    assert counted == ((6, 1, 2, 2 if again else 0, 0 if again else 2) if compared else (6, 1, 0, 0, 4))


def test_rsync_and_pcopy_give_unchanged_files_the_mode_of_the_source(area: Path) -> None:
    """``--existing changed`` does the same: the contents are kept, and the metadata becomes that of the source."""
    for tree, byte, mode in (
        (area / "source", b"n", 0o600),
        (area / "rsync", b"o", 0o640),
        (area / "pcopy", b"o", 0o640),
    ):
        tree.mkdir()
        (tree / "file").write_bytes(byte)
        (tree / "file").chmod(mode)
        os.utime(tree / "file", (1_000_000_000, 1_000_000_000))
    subprocess.run(["rsync", "-a", f"{area / 'source'}/", area / "rsync"], check=True)
    time.sleep(OLD_ENOUGH)
    succeed("--existing", "changed", "-T", area / "source", area / "pcopy")
    found = {
        tree: ((area / tree / "file").read_bytes(), (area / tree / "file").stat().st_mode & 0o7777)
        for tree in ("rsync", "pcopy")
    }
    assert found == {"rsync": (b"o", 0o600), "pcopy": (b"o", 0o600)}
