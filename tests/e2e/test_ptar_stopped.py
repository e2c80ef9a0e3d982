"""``ptar -x`` stopped by a full disk, an error or a signal reports the unpacked items and leaves none partial."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import native
from tests.support.archives import MIB, ptar, small_file_system
from tests.support.command import Completed, show
from tests.support.faults import require_strace
from tests.support.held import held

STRACE = ("strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree with simple files, links, files with extended attributes and large files."""
    tree = tmp_path_factory.mktemp("stopped") / "tree"
    for number in range(8):
        (tree / f"d{number}").mkdir(parents=True)
        for each in range(60):
            (tree / f"d{number}/{each}").write_bytes(os.urandom(1000 + 50 * each))
        for each in range(60):
            (tree / f"d{number}/to{each}").symlink_to("nowhere")
        for each in range(12):
            path = tree / f"d{number}/care{each}"
            path.write_bytes(os.urandom(5000))
            subprocess.run(["setfattr", "-n", "user.a", "-v", "b", path], check=True)
        (tree / f"d{number}/large").write_bytes(os.urandom(MIB + MIB // 2))
        os.link(tree / f"d{number}/large", tree / f"link{number}")
    subprocess.run(["tar", "--xattrs", "-cf", "a.tar", "tree"], cwd=tree.parent, check=True)
    return tree


def check_report(done: Completed, tree: Path, place: Path) -> dict[str, Any]:
    """Check that all unpacked items are complete and equal the reported counts. Return the report."""
    reported: dict[str, Any] = json.loads(done.stdout)
    names_of_files = symlinks = 0
    for around, _, names in os.walk(place):
        for name in names:
            path = Path(around, name)
            of_tree = tree / path.relative_to(place / "tree")
            if path.is_symlink():
                assert os.readlink(path) == os.readlink(of_tree), path
                symlinks += 1
            else:
                assert path.read_bytes() == of_tree.read_bytes(), path
                names_of_files += 1
    assert (reported["files"] + reported["hardlinks"], reported["symlinks"]) == (names_of_files, symlinks), show(done)
    unpacked = sum(reported[key] for key in ("files", "hardlinks", "symlinks", "directories"))
    assert unpacked + reported["skipped"] + reported["failed"] <= reported["found"], show(done)
    if done.returncode != 75:
        assert unpacked + reported["skipped"] + reported["failed"] == reported["found"], show(done)
    return reported


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("mebibytes", [2, 7, 14])
def test_full_disk_is_reported(mebibytes: int, ranks: int, backend: str, tree: Path, tmp_path: Path) -> None:
    native.require()
    with small_file_system(tmp_path / "small", mebibytes) as small:
        words = ("-C", small, "--json", "--errors", tmp_path / "errors")
        done = ptar("-xf", tree.parent / "a.tar", *words, ranks=ranks, env={"PCOPY_BACKEND": backend})
        assert done.returncode in (1, 75), show(done)
        reported = check_report(done, tree, small)
        assert reported["failed"] == (tmp_path / "errors").read_bytes().count(b"\n")
        assert b"No space left on device" in done.stderr


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize(
    ("call", "when"), [("symlinkat", 70), ("copy_file_range", 2), ("linkat", 2), ("fsetxattr", 20)]
)
def test_signal_leaves_only_whole_members_and_counts_them(
    call: str, when: int, backend: str, tree: Path, place: Path
) -> None:
    """The signal comes while one rank creates an item."""
    native.require()
    words = ("-xf", tree.parent / "a.tar", "-C", place, "--json")
    options: dict[str, Any] = {"program": "ptar", "ranks": 2, "env": {"PCOPY_BACKEND": backend}}
    with held(place.parent / "log", *words, calls=(call,), when=f"{when}", **options) as run:
        run.run.send_signal(signal.SIGTERM)
        done = run.go_on()
    assert done.returncode == 75, show(done)
    reported = check_report(done, tree, place)
    assert reported["symlinks"] or reported["files"], show(done)


@pytest.mark.parametrize("call", ["copy_file_range,pwrite64", "symlinkat", "linkat", "renameat,renameat2,rename"])
def test_input_output_error_fails_only_the_affected_items(call: str, tree: Path, place: Path) -> None:
    require_strace()
    wrap = (*STRACE, "-e", f"trace={call}", "-e", f"inject={call}:error=EIO:when=2..3")
    done = ptar("-xf", tree.parent / "a.tar", "-C", place, "--json", ranks=2, wrap=wrap)
    assert (done.returncode, b": Input/output error" in done.stderr) == (1, True), show(done)
    reported = check_report(done, tree, place)
    assert 1 <= reported["failed"] <= 12
    assert reported["found"] == 8 * 135 + 1
