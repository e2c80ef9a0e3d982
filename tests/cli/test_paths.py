"""SRC and DST on a real file system, with one test for each line of the rules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pcopy.errors import RequestRefused
from pcopy.jobs.paths import resolve_sources_and_targets
from pcopy.tasks.base.job import Root
from tests.support import refusals


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with ``file``, ``tree/sub/leaf`` and an existing ``out``, which the tests name by relative
    paths.
    """
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("one")
    Path("tree/sub").mkdir(parents=True)
    Path("tree/sub/leaf").write_text("two")
    Path("out").mkdir()
    return Path(os.path.realpath(tmp_path))


def roots(*paths: str, exact: bool = False) -> tuple[Root, ...]:
    *sources, destination = map(os.fsencode, paths)
    return resolve_sources_and_targets(sources, destination, exact)


def route(*paths: str, exact: bool = False) -> tuple[str, str, str, str]:
    """Return (source, item, target, name) of the only root, with paths relative to the working directory."""
    (root,) = roots(*paths, exact=exact)
    here = os.path.realpath(os.getcwdb())
    for path, identity in ((root.source, root.source_id), (root.target, root.target_id)):
        status = os.stat(path)
        assert (status.st_dev, status.st_ino) == identity
        assert os.path.realpath(path) == path
    source, target = (os.path.relpath(path, here).decode() for path in (root.source, root.target))
    return source, root.item.decode(), target, root.name.decode()


def refusal(*paths: str, exact: bool = False) -> str:
    before = listing()
    reason = refusals.refusal(lambda: roots(*paths, exact=exact))
    assert listing() == before
    return reason


def listing() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


# Targets


def test_source_becomes_an_absent_destination() -> None:
    assert route("tree", "new") == ("tree", "", ".", "new")
    assert route("tree", "new/") == ("tree", "", ".", "new")
    assert route("tree/", "out/new") == ("tree", "", "out", "new")
    assert route("file", "out/new") == (".", "file", "out", "new")


def test_source_goes_into_an_existing_directory() -> None:
    assert route("tree", "out") == ("tree", "", "out", "tree")
    assert route("tree/sub", "out/") == ("tree/sub", "", "out", "sub")
    assert route("file", "out/.") == (".", "file", "out", "file")
    assert route("tree/sub/leaf", "tree") == ("tree/sub", "leaf", "tree", "leaf")


def test_trailing_slash_means_the_contents() -> None:
    for source in ("tree/", "tree//", "tree/.", "tree/sub/.."):
        assert route(source, "out") == ("tree", "", "out", "")


def test_dots_mean_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("tree/sub")
    assert route(".", "../../out")[1:] == ("", "../../out", "")
    assert route("..", "../../out") == ("..", "", "../../out", "")
    assert route("./", "../../new") == (".", "", "../..", "new")


def test_no_target_directory_makes_destination_the_target() -> None:
    assert route("tree", "out", exact=True) == ("tree", "", "out", "")
    assert route("file", "out", exact=True) == (".", "file", ".", "out")  # fails later unless out is empty
    assert route("tree", "new", exact=True) == ("tree", "", ".", "new")


def test_paths_as_given_are_kept_for_messages() -> None:
    (root,) = roots("./tree", "out/")
    assert (root.source_shown, root.target_shown) == (b"./tree", b"out/tree")
    (root,) = roots("tree/", "out/")
    assert (root.source_shown, root.target_shown) == (b"tree/", b"out/")
    (root,) = roots("tree", "out", exact=True)
    assert root.target_shown == b"out"


def test_the_root_directory_is_a_destination() -> None:
    for slashes in ("/", "//"):
        (root,) = roots("tree", slashes)
        assert (root.target, root.name) == (b"/", b"tree")


def test_names_may_be_any_bytes() -> None:
    name = b"\xff\n\x1b"
    Path(os.fsdecode(name)).touch()
    (root,) = resolve_sources_and_targets([name], b"out", False)
    assert (root.item, root.name) == (name, name)
    with pytest.raises(RequestRefused, match=r"\\xff\\n\\x1bx: does not exist"):
        resolve_sources_and_targets([name + b"x"], b"out", False)


# Symbolic links and other types


def test_a_link_is_copied_as_a_link() -> None:
    os.symlink("tree", "link")
    os.symlink("nowhere", "dangling")
    assert route("link", "out") == (".", "link", "out", "link")
    assert route("dangling", "out") == (".", "dangling", "out", "dangling")


def test_link_with_a_trailing_slash_is_followed() -> None:
    os.symlink("tree", "link")
    assert route("link/", "out") == ("tree", "", "out", "")
    os.symlink("file", "to_file")
    assert "to_file/: not a directory" in refusal("to_file/", "out")
    os.symlink("nowhere", "dangling")
    assert "dangling/: does not exist" in refusal("dangling/", "out")


def test_source_below_a_link_is_resolved() -> None:
    os.symlink("tree", "link")
    assert route("link/sub", "out") == ("tree/sub", "", "out", "sub")
    assert route("link/sub/leaf", "out") == ("tree/sub", "leaf", "out", "leaf")


def test_a_destination_link_to_a_directory_is_followed() -> None:
    os.symlink("out", "way")
    assert route("tree", "way") == ("tree", "", "out", "tree")
    assert route("tree", "way", exact=True) == ("tree", "", "out", "")
    assert route("file", "way/") == (".", "file", "out", "file")
    assert route("tree", "way/new") == ("tree", "", "out", "new")


@pytest.mark.parametrize("goal", ["other", "nowhere", "way"])
def test_destination_link_to_another_type_is_replaced_or_refused(goal: str) -> None:
    Path("other").touch()
    os.symlink(goal, "way")
    assert route("file", "way") == (".", "file", ".", "way")
    assert "way: not a directory" in refusal("tree", "way")
    assert "way/: not a directory" in refusal("file", "way/")
    assert "way/: not a directory" in refusal("tree", "way/")


def test_a_file_does_not_replace_a_link_to_a_directory() -> None:
    os.symlink("out", "way")
    assert "way: a directory" in refusal("file", "way", exact=True)
    assert "out/: a directory" in refusal("file", "out/", exact=True)


def test_special_files_are_sources() -> None:
    os.mkfifo("fifo")
    assert route("fifo", "out") == (".", "fifo", "out", "fifo")
    assert "fifo/: not a directory" in refusal("fifo/", "out")


def test_unreadable_source_is_accepted() -> None:
    os.chmod("tree", 0)
    os.chmod("file", 0)
    assert route("tree", "out") == ("tree", "", "out", "tree")
    assert route("file", "out") == (".", "file", "out", "file")


# Refused


def test_missing_and_empty_sources_are_refused() -> None:
    assert "gone: does not exist" in refusal("gone", "out")
    assert "gone: does not exist" in refusal("file", "tree", "gone", "out")
    assert "gone/: does not exist" in refusal("gone/", "out")
    assert "file/below: not a directory" in refusal("file/below", "out")
    assert "SRC is the empty string" in refusal("", "out")
    assert "DST is the empty string" in refusal("file", "")


def test_file_with_a_trailing_slash_is_refused() -> None:
    assert "file/: not a directory" in refusal("file/", "out")
    assert "file/.: not a directory" in refusal("file/.", "out")
    assert "new/: does not exist" in refusal("file", "new/")
    assert "new/.: does not exist" in refusal("tree", "new/.")


def test_the_parent_of_the_destination_must_exist() -> None:
    assert "its directory no/where does not exist" in refusal("tree", "no/where/new")
    assert "file/new" in refusal("tree", "file/new")


def test_a_directory_does_not_replace_a_file() -> None:
    Path("other").touch()
    assert "other: not a directory" in refusal("tree", "other")
    assert "other: not a directory" in refusal("tree/", "other")
    assert "other/: not a directory" in refusal("tree", "other/")


def test_existing_items_in_the_destination_are_accepted() -> None:
    Path("out/tree").touch()
    Path("out/file").mkdir()
    os.symlink("../tree", "out/sub")
    assert route("tree", "out") == ("tree", "", "out", "tree")
    assert route("file", "out") == (".", "file", "out", "file")
    assert route("tree/sub", "out") == ("tree/sub", "", "out", "sub")


def test_same_source_and_destination_is_refused() -> None:
    os.symlink("tree", "link")
    os.link("file", "hard")
    for pair in (("file", "file"), ("file", "."), ("file", "./tree/../file"), ("file", "hard")):
        assert "the same file" in refusal(*pair)
    for pair in (("tree/", "tree"), ("tree/", "link"), ("link/", "tree"), ("tree", "."), ("tree/.", "tree/sub/..")):
        assert "the same directory" in refusal(*pair)
    assert "the same directory" in refusal("tree", "tree", exact=True)
    assert "the same file" in refusal("link", ".")


def test_hard_link_to_the_source_in_the_destination_is_refused() -> None:
    os.link("file", "out/file")
    assert "the same file" in refusal("file", "out")


def test_link_does_not_replace_its_own_target() -> None:
    os.symlink("../file", "out/link")
    assert "would be replaced by out/link, a link to this file; name another DST" in refusal("out/link", "file")
    os.symlink("out/only", "only")
    Path("out/only").touch()
    assert "would be replaced by only, a link to this file; name another DST" in refusal("only", "out")
    assert route("file", "out/link") == (".", "file", "out", "link")


def test_destination_inside_the_source_is_refused() -> None:
    os.symlink("tree/sub", "link")
    for destination in ("tree/new", "tree/sub", "tree/sub/new", "link", "link/new", "tree/sub/../new"):
        assert "cannot be copied into itself" in refusal("tree", destination)
        assert "cannot be copied into itself" in refusal("tree/", destination)
    assert "cannot be copied into itself" in refusal("tree", "tree")
    assert "cannot be copied into itself" in refusal("/", "out")
    assert "cannot be copied into itself" in refusal("tree", "tree/sub", exact=True)
    assert "cannot be copied into itself" in refusal("file", "tree", "tree/sub")


def test_destination_with_the_source_as_name_prefix_is_outside() -> None:
    assert route("tree", "tree2") == ("tree", "", ".", "tree2")


def test_source_inside_the_destination_must_not_be_overwritten() -> None:
    assert route("tree/sub/", "tree") == ("tree/sub", "", "tree", "")
    assert "the same directory" in refusal("tree/sub", "tree")
    Path("tree/sub/sub").mkdir()
    assert "tree/sub/sub would be copied over this source" in refusal("tree/sub/", "tree")
    assert route("tree/sub/sub", ".") == ("tree/sub/sub", "", ".", "sub")


def test_source_below_its_own_target_must_not_be_overwritten() -> None:
    Path("out/tree/deep/tree").mkdir(parents=True)
    assert route("out/tree/deep/tree", "out") == ("out/tree/deep/tree", "", "out", "tree")
    Path("out/tree/deep/tree/deep/tree").mkdir(parents=True)
    assert "would be copied over this source" in refusal("out/tree/deep/tree", "out")


def test_source_must_not_be_overwritten_by_another_source() -> None:
    Path("out/a/x").mkdir(parents=True)
    Path("b/a").mkdir(parents=True)
    assert [root.name for root in roots("out/a/x", "b/a", "out")] == [b"x", b"a"]
    Path("b/a/x").touch()
    assert "b/a/x would be copied over this source" in refusal("out/a/x", "b/a", "out")


def test_same_directory_is_detected_through_bind_mounts() -> None:
    Path("bind").mkdir()
    script = (
        "mount --bind tree bind || exit 1\n"
        'for pair in "tree bind/new" "tree/ bind" "bind tree/new" "bind/ tree" "tree bind/sub"; do\n'
        '"$1" -c "$2" $pair || exit 3\ndone'
    )
    program = (
        "import sys\nfrom pcopy.errors import RequestRefused\n"
        "from pcopy.jobs.paths import resolve_sources_and_targets\n"
        "try: resolve_sources_and_targets([sys.argv[1].encode()], sys.argv[2].encode(), False)\n"
        "except RequestRefused: sys.exit(0)\nsys.exit(1)"
    )
    repository = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    shell = ["sh", "-c", script, "sh", sys.executable, program]
    command = ["unshare", "--user", "--map-root-user", "--mount", *shell]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode not in {0, 3}:
        pytest.skip(f"no bind mounts here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


# Several sources


def test_several_sources_need_a_directory() -> None:
    first, second = roots("file", "tree", "out")
    assert (first.item, first.name, second.source[-4:], second.name) == (b"file", b"file", b"tree", b"tree")
    assert first.target_id == second.target_id
    Path("other").touch()
    assert "new: does not exist" in refusal("file", "tree", "new")
    assert "other: not a directory" in refusal("file", "tree", "other")
    assert "takes one SRC" in refusal("file", "tree", "out", exact=True)


def test_sources_with_equal_basenames_are_refused() -> None:
    Path("tree/file").touch()
    assert "both would go to out/file" in refusal("file", "tree/file", "out")
    assert "both would go to" in refusal("file", "file", "out")
    assert "both would go to" in refusal("tree/", "tree/sub/", "out")


def test_source_that_collides_with_contents_of_another_is_refused() -> None:
    first, second = roots("tree/", "file", "out")
    assert (first.name, second.name) == (b"", b"file")
    Path("tree/file").touch()
    Path("other/sub").mkdir(parents=True)
    Path("other/link").symlink_to("nowhere")
    Path("tree/link").mkdir()
    Path("alias").symlink_to("tree")
    for contents in ("tree/", "tree/.", "tree/sub/..", "alias/"):
        for name in ("file", "other/sub", "other/sub/../sub", "other/link", "tree/sub", "tree/file"):
            meeting = f"both would go to out/{os.path.basename(name)}; copy them one after the other"
            assert meeting in refusal(contents, name, "out")
            assert meeting in refusal(name, contents, "out")


def test_missing_source_argument_is_refused() -> None:
    with pytest.raises(RequestRefused):
        resolve_sources_and_targets([], b"out", False)
