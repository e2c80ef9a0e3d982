"""``ptar -x`` reports which existing items it replaces, and what differs, in the words of a copy.

GNU tar makes the archives. The table says what was changed after that, and so what must be reported.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.archives import MIB, ptar
from tests.support.attributes import acl
from tests.support.command import Completed, show
from tests.support.users import require_root

TIME = 1_600_000_000
Change = Callable[[Path], object]


def set_time(path: Path, seconds: int = TIME) -> None:
    os.utime(path, (seconds, seconds), follow_symlinks=False)


def write_text(path: Path) -> None:
    path.write_bytes(b"text")


def write_large(path: Path) -> None:
    path.write_bytes(bytes(9 * MIB))


def write_other(path: Path) -> None:
    path.write_bytes(b"longer")
    set_time(path)


def replace_by(make: Change) -> Change:
    """Remove the item, and make another one of the same time in its place."""

    def change(path: Path) -> None:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        make(path)
        set_time(path)

    return change


SITUATIONS: dict[str, tuple[Change, Change, str]] = {
    "equal": (write_text, lambda path: None, "replace"),
    "new": (write_text, Path.unlink, "copy"),
    "size": (write_text, write_other, "replace size"),
    "large": (write_large, write_other, "replace size"),
    "time": (write_text, lambda path: set_time(path, TIME - 5), "replace time"),
    "mode": (write_text, lambda path: path.chmod(0o600), "replace mode"),
    "owner": (write_text, lambda path: os.chown(path, 12, -1), "replace owner"),
    "group": (write_text, lambda path: os.chown(path, -1, 12), "replace owner"),
    "xattr": (write_text, lambda path: os.setxattr(path, "user.name", b"value"), "replace xattr"),
    "acl": (
        write_text,
        lambda path: os.setxattr(path, "system.posix_acl_access", acl(6, 4, 4, {55: 4})),
        "replace mode,acl",
    ),
    "type": (write_text, replace_by(Path.mkdir), "replace type"),
    "fifo": (os.mkfifo, lambda path: path.chmod(0o600), "replace mode"),
    "device": (
        lambda path: os.mknod(path, 0o20644, os.makedev(1, 3)),
        replace_by(lambda path: os.mknod(path, 0o20644, os.makedev(1, 5))),
        "replace content",
    ),
    "link": (lambda path: path.symlink_to("there"), lambda path: None, "replace"),
    "link text": (
        lambda path: path.symlink_to("there"),
        replace_by(lambda path: path.symlink_to("where")),
        "replace content",
    ),
    "link length": (
        lambda path: path.symlink_to("there"),
        replace_by(lambda path: path.symlink_to("far away")),
        "replace size,content",
    ),
    "equal directory": (Path.mkdir, lambda path: None, "skip"),
    "directory mode": (Path.mkdir, lambda path: path.chmod(0o700), "meta mode"),
    "directory time": (Path.mkdir, lambda path: set_time(path, TIME - 5), "meta time"),
    "new directory": (Path.mkdir, Path.rmdir, "copy"),
    "file of a directory": (Path.mkdir, replace_by(write_text), "replace type"),
}
"""How each item is made, how it is changed after it was archived, and what ``ptar -x`` reports then."""


def prepare(area: Path) -> dict[str, str]:
    """Make the tree, archive it, and change it. Return what must be reported for each path below ``area``."""
    tree = area / "tree"
    tree.mkdir()
    for name, (make, _, _) in SITUATIONS.items():
        make(tree / name)
    (tree / "below").mkdir()
    write_text(tree / "below/one")
    os.link(tree / "below/one", tree / "below/two")
    paths = sorted(tree.rglob("*"), reverse=True)
    for path in paths:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
        set_time(path)
    set_time(tree)
    subprocess.run(["tar", "--format=pax", "--xattrs", "--acls", "-cf", area / "a.tar", "tree"], cwd=area, check=True)
    for name, (_, change, _) in SITUATIONS.items():
        change(tree / name)
    set_time(tree)
    expected = {f"tree/{name}": reported for name, (_, _, reported) in SITUATIONS.items()}
    return {**expected, "tree": "skip", "tree/below": "skip", "tree/below/one": "replace", "tree/below/two": "replace"}


def lines_of(area: Path, expected: dict[str, str]) -> list[str]:
    """Return the lines of a dry run, which lists no item that is skipped."""
    return sorted(f"{reported} {area}/{path}" for path, reported in expected.items() if reported != "skip")


def run(area: Path, *words: str, ranks: int) -> Completed:
    done = ptar("-x", "-f", area / "a.tar", "-C", area, *words, cwd=area, ranks=ranks)
    assert done.returncode == 0, show(done)
    return done


@pytest.mark.parametrize("ranks", [1, 3])
def test_dry_run_and_log_report_what_differs(area: Path, tmp_path: Path, ranks: int) -> None:
    require_root("owners and devices")
    expected = prepare(area)
    dry = run(area, "--dry-run", ranks=ranks).stdout.decode().splitlines()
    listed = sorted(line for line in dry if line.startswith(("copy ", "replace", "meta", "skip")))
    assert listed == lines_of(area, expected)
    run(area, "-v", "--log", f"{tmp_path}/log", ranks=ranks)
    logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    actions = {item["path"]: " ".join(filter(None, (item["action"], item.get("change")))) for item in logged}
    assert actions == {f"{area}/{path}": reported for path, reported in expected.items()}


@pytest.mark.parametrize("ranks", [1, 3])
def test_members_left_out_are_listed_only_on_request(area: Path, ranks: int) -> None:
    require_root("owners and devices")
    expected = prepare(area)
    words = ("--exclude", "below", "--exclude", "e*")
    skipped = ["below", "below/one", "below/two", "equal", "equal directory"]
    for path in skipped:
        del expected[f"tree/{path}"]
    skipped = ["", *(f"/{path}" for path in skipped)]
    few = run(area, "--dry-run", *words, ranks=ranks).stdout.decode().splitlines()
    assert sorted(line for line in few if line.startswith(("copy ", "replace", "meta", "skip"))) == lines_of(
        area, expected
    )
    assert f"  not listed: {len(skipped)} items that are skipped (--dry-run=all lists all)" in few
    every = run(area, "--dry-run=all", *words, ranks=ranks).stdout.decode().splitlines()
    assert sorted(line for line in every if line.startswith("skip ")) == sorted(
        f"skip {area}/tree{path}" for path in skipped
    )
    assert not any("not listed" in line for line in every)


def test_log_in_the_working_directory_is_refused_by_its_name(area: Path) -> None:
    (area / "file").touch()
    subprocess.run(["tar", "-cf", "a.tar", "file"], cwd=area, check=True)
    run = ptar("-x", "-f", "a.tar", "--log", "log", cwd=area)
    line = "ptar: --log log: lies in ., which is unpacked into; name another file\n"
    assert (run.returncode, run.stderr.decode()) == (2, line), show(run)
