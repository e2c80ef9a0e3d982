"""Where items are copied to: the rules of cp with rsync's trailing slash, one test for each row of their table."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.command import pcopy, show, succeed
from tests.support.oracle import differences
from tests.support.users import require_root


@pytest.fixture
def source(area: Path) -> Path:
    """Return a directory with a file and a subdirectory."""
    path = area / "source"
    (path / "sub").mkdir(parents=True)
    (path / "file").write_bytes(b"content")
    (path / "sub/inner").write_bytes(b"inner")
    return path


def test_missing_target_becomes_a_copy_of_the_source(area: Path, source: Path) -> None:
    succeed(source, area / "copy")
    assert differences(source, area / "copy") == []


def test_missing_target_with_a_trailing_slash_becomes_a_copy_of_the_source(area: Path, source: Path) -> None:
    succeed(source, f"{area}/copy/")
    assert differences(source, area / "copy") == []


def test_file_is_copied_to_a_missing_name(area: Path, source: Path) -> None:
    succeed(source / "file", area / "copy")
    assert differences(source / "file", area / "copy") == []


@pytest.mark.parametrize("slash", ["", "/"])
def test_existing_directory_receives_the_source_by_its_name(area: Path, source: Path, slash: str) -> None:
    (area / "into").mkdir()
    succeed(source, f"{area}/into{slash}")
    succeed(source / "file", f"{area}/into{slash}")
    assert sorted(os.listdir(area / "into")) == ["file", "source"]
    assert differences(source, area / "into/source") == []
    assert differences(source / "file", area / "into/file") == []


def test_symlink_to_a_directory_as_target_is_followed(area: Path, source: Path) -> None:
    (area / "into").mkdir()
    (area / "link").symlink_to("into")
    succeed(source, area / "link")
    assert (area / "link").is_symlink()
    assert differences(source, area / "into/source") == []


def test_option_no_target_directory_copies_onto_the_target(area: Path, source: Path) -> None:
    (area / "into").mkdir()
    succeed("-T", source, area / "into")
    assert differences(source, area / "into") == []
    succeed("-T", source / "file", area / "copy")
    assert differences(source / "file", area / "copy") == []


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("spelling", ["{}/", "{}/.", "{}/sub/..", "{}//", "{}/./"])
def test_source_with_a_trailing_slash_or_dot_copies_its_contents(
    area: Path, source: Path, spelling: str, exists: bool
) -> None:
    if exists:
        (area / "copy").mkdir()
    succeed(spelling.format(source), area / "copy")
    assert differences(source, area / "copy") == []


@pytest.mark.parametrize(("spelling", "below"), [(".", ""), ("./", ""), ("..", "sub"), ("../", "sub")])
def test_dot_or_dot_dot_as_source_copies_its_contents(area: Path, source: Path, spelling: str, below: str) -> None:
    (area / "copy").mkdir()
    succeed(spelling, area / "copy", cwd=source / below)
    assert differences(source, area / "copy") == []


def test_relative_paths_are_accepted(area: Path, source: Path) -> None:
    succeed("source", "copy", cwd=area)
    assert differences(source, area / "copy") == []
    (area / "into").mkdir()
    succeed("../source/file", ".", cwd=area / "into")
    assert differences(source / "file", area / "into/file") == []


def test_names_that_look_like_options_follow_a_double_dash(area: Path, source: Path) -> None:
    source.rename(area / "-n")
    succeed("--", "-n", "--delete", cwd=area)
    assert differences(area / "-n", area / "--delete") == []


def test_symlink_as_source_is_copied_itself(area: Path, source: Path) -> None:
    for name, target in {"link": "source", "dangling": "nowhere", "to-file": "source/file"}.items():
        (area / name).symlink_to(target)
        succeed(area / name, area / f"{name}-copy")
        assert differences(area / name, area / f"{name}-copy") == []
    (area / "into").mkdir()
    succeed(area / "link", area / "into")
    assert os.readlink(area / "into/link") == "source"


def test_symlink_with_a_trailing_slash_is_followed(area: Path, source: Path) -> None:
    (area / "link").symlink_to("source")
    succeed(f"{area}/link/", area / "copy")
    assert differences(source, area / "copy") == []


def test_several_sources_are_copied_into_a_directory(area: Path, source: Path) -> None:
    (area / "link").symlink_to("nowhere")
    (area / "into").mkdir()
    succeed(source, source / "file", area / "link", area / "into")
    assert differences(source, area / "into/source") == []
    assert differences(source / "file", area / "into/file") == []
    assert os.readlink(area / "into/link") == "nowhere"
    assert len(os.listdir(area / "into")) == 3


def test_hard_links_between_several_sources_are_kept(area: Path, source: Path) -> None:
    os.link(source / "file", area / "other-name")
    (area / "into").mkdir()
    succeed(source, area / "other-name", area / "into")
    assert (area / "into/source/file").stat().st_ino == (area / "into/other-name").stat().st_ino


@pytest.mark.parametrize("kind", ["to-file", "dangling"])
def test_symlink_as_target_of_a_file_is_replaced(area: Path, source: Path, kind: str) -> None:
    (area / "victim").write_bytes(b"old")
    (area / "link").symlink_to("victim" if kind == "to-file" else "nowhere")
    succeed(source / "file", area / "link")
    assert differences(source / "file", area / "link") == []
    assert (area / "victim").read_bytes() == b"old"
    assert not (area / "nowhere").exists()


def test_symlinks_below_the_target_are_not_followed(area: Path, source: Path) -> None:
    """Existing symlinks have the names of source directories and files and lead outside the tree."""
    outside = area / "outside"
    outside.mkdir()
    (outside / "inner").write_bytes(b"precious")
    (outside / "file").write_bytes(b"precious")
    copy = area / "copy"
    copy.mkdir()
    (copy / "sub").symlink_to(outside)
    (copy / "file").symlink_to(outside / "file")
    succeed("-T", source, copy)
    assert differences(source, copy) == []
    assert sorted(os.listdir(outside)) == ["file", "inner"]
    assert {path.read_bytes() for path in outside.iterdir()} == {b"precious"}


@pytest.mark.parametrize("kind", ["file", "dangling", "fifo"])
def test_directory_replaces_an_item_of_another_type(area: Path, source: Path, kind: str) -> None:
    copy = area / "copy"
    copy.mkdir()
    if kind == "file":
        (copy / "sub").write_bytes(b"old")
    elif kind == "dangling":
        (copy / "sub").symlink_to("nowhere")
    else:
        os.mkfifo(copy / "sub")
    succeed("-T", source, copy)
    assert differences(source, copy) == []


def test_file_replaces_only_an_empty_directory(area: Path, source: Path) -> None:
    copy = area / "copy"
    (copy / "file").mkdir(parents=True)
    succeed("-T", source, copy)
    assert differences(source, copy) == []
    (copy / "file").unlink()
    (copy / "file").mkdir()
    (copy / "file/precious").write_bytes(b"x")
    run = pcopy("-T", source, copy)
    assert run.returncode == 1, show(run)
    assert b"copy/file" in run.stderr or b"source/file" in run.stderr, show(run)
    assert (copy / "file/precious").read_bytes() == b"x"
    assert differences(source / "sub", copy / "sub") == []


def test_symlinks_and_special_files_replace_files(area: Path) -> None:
    source, copy = area / "source", area / "copy"
    for place in (source, copy):
        place.mkdir()
    os.mkfifo(source / "fifo")
    (source / "link").symlink_to("nowhere")
    for name in ("fifo", "link"):
        (copy / name).write_bytes(b"old")
    succeed("-T", source, copy)
    assert differences(source, copy) == []


def test_existing_directory_gets_the_metadata_of_the_source(area: Path, source: Path) -> None:
    source.chmod(0o750)
    os.utime(source, ns=(1, 1_234_567_890_123_456_789))
    (area / "copy").mkdir(mode=0o700)
    succeed(f"{source}/", area / "copy")
    assert differences(source, area / "copy") == []


def test_items_only_in_the_target_are_kept(area: Path, source: Path) -> None:
    (area / "copy/sub").mkdir(parents=True)
    (area / "copy/extra").write_bytes(b"x")
    (area / "copy/sub/extra").write_bytes(b"y")
    succeed(f"{source}/", area / "copy")
    assert (area / "copy/extra").read_bytes() == b"x"
    assert (area / "copy/sub/extra").read_bytes() == b"y"


def test_source_inside_the_target_is_copied(area: Path, source: Path) -> None:
    """Without deletion this is safe."""
    succeed(source / "sub/inner", source)
    assert (source / "inner").read_bytes() == b"inner"
    succeed(f"{source}/sub/", source)
    assert (source / "inner").read_bytes() == b"inner"


def test_bind_mount_of_the_target_in_the_source_does_not_recurse(area: Path, source: Path) -> None:
    require_root("bind mount")
    copy = area / "copy"
    copy.mkdir()
    (copy / "old").write_bytes(b"x")
    (source / "mount").mkdir()
    subprocess.run(["mount", "--bind", copy, source / "mount"], check=True)
    try:
        run = pcopy("-T", source, copy)
        # An item fails if the scan finds it; the job is refused if it is found before.
        assert run.returncode in (1, 2), show(run)
        assert b"mount" in run.stderr, show(run)
        assert not (copy / "mount/old").exists()
    finally:
        subprocess.run(["umount", source / "mount"], check=True)
