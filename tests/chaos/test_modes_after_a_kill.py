"""``--no-preserve mode`` after a kill: an item that was being created has no mode to keep, an existing item has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.test_links_to_what_stays import has_birth
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import Fault
from tests.support.filesystems import Place

INCOMPLETE = 1
USERS_MODE = 0o600


@pytest.mark.parametrize("kind", ["ext4", "ext4-128"])
@pytest.mark.parametrize("options", [(), ("--inplace",)], ids=["replaced", "in place"])
def test_item_being_created_at_a_kill_gets_the_mode_of_a_new_item(
    on: Place, area: Path, kind: str, options: tuple[Argument, ...]
) -> None:
    place = on(kind)
    assert has_birth(place) == (kind == "ext4")
    source, copy, env = place / "source", place / "copy", {"XDG_STATE_HOME": str(area / "state")}
    source.mkdir()
    copy.mkdir()
    for name in ("new", "whole", "old"):
        (source / name).write_bytes(b"content")
    os.mkfifo(source / "fifo", 0o644)
    for path in source.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
    (source / "failing").symlink_to("nowhere")
    (copy / "old").write_bytes(b"old")
    (copy / "old").chmod(USERS_MODE)
    words: list[Argument] = ["--json", "--no-preserve", "mode", *options, "-T", source, copy]
    wrap = Fault(area / "trace", ["symlinkat"], None, "EIO").wrap()
    run = pcopy(*words, ranks=2, env=env, wrap=wrap)
    assert (run.returncode, summary(run)["failed"]) == (INCOMPLETE, 1), show(run)
    assert modes(copy) == {"new": 0o644, "whole": 0o644, "fifo": 0o644, "old": USERS_MODE}
    for facts in area.glob("state/pcopy/*/run-1/facts-*"):
        facts.unlink()
    for name in ("new", "fifo"):  # as a kill during their creation leaves them
        (copy / name).chmod(USERS_MODE)
        os.utime(copy / name)
    os.truncate(copy / "new", 3)
    succeed("--resume", ranks=2, env=env)
    # Without a birth time they may be files of the user, whose mode is kept.
    made = 0o644 if kind == "ext4" else USERS_MODE
    assert modes(copy) == {"new": made, "whole": 0o644, "fifo": made, "old": USERS_MODE}
    assert (copy / "new").read_bytes() == b"content"


def modes(tree: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o7777 for path in tree.iterdir() if not path.is_symlink()}
