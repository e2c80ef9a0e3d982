"""Items that SRC lacks and that ``--mirror`` and ``--delete`` nevertheless do not delete."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.files import write
from tests.support.filesystems import Place, mounted
from tests.support.mirrored import make_trees, mirror
from tests.support.preload import preloaded
from tests.support.users import require_root

FOLDING = Path(__file__).parents[1] / "chaos/folding.c"


@pytest.fixture
def trees(area: Path) -> Path:
    make_trees(area)
    return area


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (["--exclude", "extra"], ["2/inner/extra", "extra/deep/file", "extra/fifo", "extra/link"]),
        (["--exclude", "/extra/deep"], ["extra/deep/file"]),
        (["--exclude", "fifo"], ["extra/fifo"]),
        (["--exclude", "link"], ["link", "extra/link"]),
        (["--exclude", "/2"], ["2/inner/extra"]),
    ],
)
def test_excluded_items_are_not_deleted(trees: Path, options: list[Argument], kept: list[str]) -> None:
    reported = mirror(trees, *options)
    extra = {"link", "2/inner/extra", "extra/deep/file", "extra/fifo", "extra/link"}
    assert {name for name in extra if os.path.lexists(trees / "copy" / name)} == set(kept)
    directories = sum(any(name.startswith(each) for name in kept) for each in ("extra/", "extra/deep/"))
    assert reported["deleted"] == 7 - len(kept) - directories


@pytest.mark.parametrize("is_in_source", [False, True])
def test_mount_points_are_not_deleted(on: Place, is_in_source: bool) -> None:
    require_root("mount")
    area = on("ext4")
    write(area / "source/file", b"content")
    if is_in_source:
        (area / "source/extra/mounted").mkdir(parents=True)
    (area / "copy/extra/mounted").mkdir(parents=True)
    write(area / "elsewhere/precious", b"precious")
    subprocess.run(["mount", "--bind", area / "elsewhere", area / "copy/extra/mounted"], check=True)
    try:
        run = pcopy("--json", "--mirror", f"{area}/source/", area / "copy")
        assert run.returncode == 0 and b"mounted" in run.stderr, show(run)
        assert (area / "elsewhere/precious").read_bytes() == b"precious"
        assert summary(run)["warnings"] == 1 and summary(run)["deleted"] == 0
    finally:
        subprocess.run(["umount", area / "copy/extra/mounted"], check=True)
    assert mirror(area)["deleted"] == (0 if is_in_source else 2)


def test_file_that_is_a_mount_point_is_not_deleted(on: Place) -> None:
    """A bind mount of the same file system has the same device: only the mount table explains why unlink(2) fails."""
    require_root("mount")
    area = on("ext4")
    write(area / "source/file", b"content")
    write(area / "copy/extra/mounted", b"below")
    write(area / "elsewhere", b"precious")
    subprocess.run(["mount", "--bind", area / "elsewhere", area / "copy/extra/mounted"], check=True)
    try:
        run = pcopy("--json", "--mirror", f"{area}/source/", area / "copy")
        assert run.returncode == 0 and b"mounted" in run.stderr, show(run)
        assert (area / "elsewhere").read_bytes() == b"precious"
        assert (summary(run)["failed"], summary(run)["deleted"]) == (0, 0)
    finally:
        subprocess.run(["umount", area / "copy/extra/mounted"], check=True)
    assert mirror(area)["deleted"] == 2


def test_directory_is_not_deleted_for_an_excluded_file_of_its_name(area: Path) -> None:
    """The filters exclude the file, but select directories."""
    write(area / "source/name", b"content")
    write(area / "source/other", b"content")
    (area / "copy/name").mkdir(parents=True)
    filters = ["--exclude=*", "--include=*/", "--include=other"]
    reported = summary(succeed("--json", "--mirror", *filters, f"{area}/source/", area / "copy"))
    assert (reported["deleted"], (area / "copy/name").is_dir(), (area / "copy/other").is_file()) == (0, True, True)


def test_temporary_files_and_the_job_directory_are_not_deleted(trees: Path) -> None:
    temporary = ".pcopy-0123456789-1-0.7"
    write(trees / "copy/2" / temporary, b"of a job that runs elsewhere")
    write(trees / "copy/extra" / temporary, b"of a job that runs elsewhere")
    write(trees / "copy/2/.pcopy-not-ours", b"a name of the user's")
    env = {"XDG_STATE_HOME": str(trees / "copy/state")}
    words: list[Argument] = ["--json", "--mirror", "--checkpoint-interval", "0.01", f"{trees}/source/", trees / "copy"]
    run = pcopy(*words, env=env)
    assert run.returncode == 0, show(run)
    assert (trees / "copy/2" / temporary).exists() and (trees / "copy/extra" / temporary).exists()
    assert not (trees / "copy/2/.pcopy-not-ours").exists() and not (trees / "copy/extra/fifo").exists()
    assert summary(run)["warnings"] == 2 and b"temporary file" in run.stderr, show(run)


@pytest.mark.parametrize("others", [["other"], []])
def test_names_that_the_target_treats_as_equal_are_not_deleted(
    area: Path, session_scratch: Path, others: list[str]
) -> None:
    """The target ignores case and keeps the spelling of an existing name."""
    require_root("mount file systems")
    write(area / "source/NAME", b"content")
    with mounted("tmpfs", session_scratch, size=64 << 20) as place:
        write(place / "copy/name", b"content")
        for other in others:
            write(place / "copy" / other, b"extra")
        env = {**preloaded(FOLDING), "PCOPY_TEST_FOLDS": str(place.stat().st_dev)}
        reported = summary(succeed("--json", "--mirror", f"{area}/source/", place / "copy", env=env))
        assert (os.listdir(place / "copy"), reported["deleted"], reported["skipped"]) == (["name"], len(others), 1)
        assert (place / "copy/name").read_bytes() == b"content"


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_directories_that_a_policy_leaves_are_not_deleted(area: Path, policy: str) -> None:
    write(area / "source/name", b"file")
    write(area / "copy/name/precious", b"precious")
    pcopy("--delete", "--existing", policy, f"{area}/source/", area / "copy")
    assert (area / "copy/name/precious").read_bytes() == b"precious"
