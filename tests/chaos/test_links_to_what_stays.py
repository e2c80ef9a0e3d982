"""A file that stays gets links of the job's own, which touches it: it is none of the job's files for all that."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pcopy.fsio.identity import birth_of
from tests.chaos.prepared import OLD_ENOUGH
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import Fault
from tests.support.filesystems import Place

INCOMPLETE = 1
SIZES = {"small": 10, "large": 9 << 20}


def has_birth(directory: Path) -> bool:
    descriptor = os.open(directory, os.O_PATH)
    try:
        return birth_of(descriptor) > 0
    finally:
        os.close(descriptor)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("kind", ["ext4", "ext4-128"])
@pytest.mark.parametrize("options", [("skip",), ("newer",), ("changed",), ("skip", "--inplace")], ids=" ".join)
def test_what_stays_is_not_taken_for_the_jobs_own(
    on: Place, area: Path, kind: str, options: tuple[str, ...]
) -> None:
    """The job was killed when it had made the links, and that was not on record."""
    place = on(kind)
    assert has_birth(place) == (kind == "ext4")
    source, copy, env = place / "source", place / "copy", {"XDG_STATE_HOME": str(area / "state")}
    for tree, byte in ((source, b"n"), (copy, b"o")):
        tree.mkdir()
        for name, size in SIZES.items():
            (tree / name).write_bytes(byte * size)
            (tree / name).chmod(0o640)
            os.utime(tree / name, (1_000_000_000, 1_000_000_000))
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
    told = summary(succeed("--resume", "--json", ranks=2, env=env))
    for name, size in SIZES.items():
        assert (copy / name).read_bytes() == b"o" * size
        assert (copy / name).stat().st_mode & 0o7777 == 0o640
        linked = options == ("changed",)  # the others keep what they have not compared
        assert (copy / name).samefile(copy / f"{name}, too") == linked
        assert (copy / f"{name}, too").read_bytes() == (b"o" if linked else b"n") * size
    counted = (told["found"], told["symlinks"], told["hardlinks"], told["files"], told["skipped"])
    # What has its name and is on no record is taken for the user's, where nothing is replaced unasked.
    assert counted == ((6, 1, 2, 0, 2) if linked else (6, 1, 0, 0, 4))
