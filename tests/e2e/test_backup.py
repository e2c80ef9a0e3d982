"""``--backup DIR``: replaced and deleted items are moved to DIR, and nothing in DIR is ever lost."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.chaos.unfinished import stopped, stopped_while_saving
from tests.faults.test_real import bindfs
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import Fault
from tests.support.files import NOW, mode_of, write
from tests.support.oracle import changes, differences, snapshot
from tests.support.users import NOBODY, require_root

MIB = 1 << 20
LARGE = 6 * MIB


@pytest.fixture
def trees(area: Path) -> Path:
    """Trees ``source`` and ``copy`` with one item for each way of replacement, and some items to delete."""
    source, copy = area / "source", area / "copy"
    for tree, text in ((source, b"new"), (copy, b"older")):
        write(tree / "a/small", text)
        write(tree / "a/large", text * LARGE)
        (tree / "link").symlink_to(os.fsdecode(text))
        write(tree / "names/one", text)
    os.link(source / "names/one", source / "names/two")
    write(copy / "names/two", b"another")
    write(source / "becomes a directory/file", b"new")
    write(copy / "becomes a directory", b"was a file")
    (source / "becomes a link").symlink_to("nowhere")
    write(copy / "becomes a link", b"was a file")
    write(copy / "extra/deep/file", b"extra")
    os.mkfifo(copy / "extra/fifo")
    (copy / "extra/deep").chmod(0o750)
    (copy / "extra link").symlink_to("..")
    write(area / "expected/a/small", b"older")
    return area


def assert_backed_up(before: Path, backup: Path, *, without: tuple[str, ...] = ()) -> None:
    """Assert that ``backup`` has all files, symbolic links and special files of ``before``, with their metadata."""
    for path in (each for each in before.rglob("*") if each.is_symlink() or not each.is_dir()):
        name = path.relative_to(before)
        if str(name) not in without:
            assert differences(path, backup / name) == [], name


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("where", ["absolute", "relative"])
def test_replaced_and_deleted_items_are_moved_to_the_backup(trees: Path, ranks: int, where: str) -> None:
    copy = trees / "copy"
    succeed("-T", copy, trees / "before")
    backup = trees / "kept/today" if where == "absolute" else copy / ".old/today"
    words: list[Argument] = ["--json", "--mirror", "--chunk-size", "1M", "--backup"]
    words += [backup if where == "absolute" else ".old/today", f"{trees}/source/", copy]
    reported = summary(succeed(*words, ranks=ranks))
    assert reported["failed"] == 0 and reported["deleted"] == 5
    assert_backed_up(trees / "before", backup)
    assert sorted(path.name for path in backup.iterdir()) == sorted(
        ["a", "link", "names", "becomes a directory", "becomes a link", "extra", "extra link"]
    )
    assert mode_of(backup / "extra/deep") == 0o750
    assert mode_of(backup / "a") == 0o700
    again = summary(succeed(*words, ranks=ranks))
    assert (again["deleted"], again["files"]) == (0, 0)
    assert_backed_up(trees / "before", backup)
    if where == "relative":
        (copy / ".old").rename(trees / "aside")
        os.utime(copy, ns=(NOW, (trees / "source").stat().st_mtime_ns))
    assert differences(trees / "source", copy) == []


@pytest.mark.parametrize("options", [[], ["--existing", "changed"], ["-u"]], ids=["replace", "changed", "newer"])
def test_backup_without_delete_numbers_names_and_ignores_unchanged_files(area: Path, options: list[Argument]) -> None:
    """Names that exist in the backup get numbers; a file that only gets new metadata is not moved."""
    write(area / "source/file", b"third", NOW + 2 * 10**12)
    write(area / "copy/file", b"first", NOW)
    write(area / "copy/extra", b"extra")
    for number, (old, new) in enumerate([(b"first", b"third"), (b"third", b"fourth"), (b"fourth", b"fifth")]):
        write(area / "source/file", new, NOW + (number + 2) * 10**12)
        succeed(*options, "--backup", area / "kept", f"{area}/source/", area / "copy")
        name = f"file.~{number}~" if number else "file"
        assert (area / "kept" / name).read_bytes() == old
    assert sorted(os.listdir(area / "kept")) == ["file", "file.~1~", "file.~2~"]
    assert (area / "copy/extra").read_bytes() == b"extra"
    (area / "source/file").chmod(0o604)
    succeed("--existing", "changed", "--backup", area / "kept", f"{area}/source/", area / "copy")
    assert sorted(os.listdir(area / "kept")) == ["file", "file.~1~", "file.~2~"]


def test_backup_of_a_single_replaced_file(area: Path) -> None:
    write(area / "source", b"new")
    write(area / "copy/name", b"old")
    succeed("--backup", "old", area / "source", area / "copy/name")
    assert (area / "copy/old/name").read_bytes() == b"old"
    assert (area / "copy/name").read_bytes() == b"new"


def test_killed_run_with_backup_loses_no_file(area: Path) -> None:
    """At every moment each old file is either in the target or in the backup."""
    env = {"XDG_STATE_HOME": str(area / "state")}
    number = 150
    for each in range(number):
        write(area / f"source/{each % 5}/{each}", b"new")
        write(area / f"copy/{each % 5}/{each}", b"old %d" % each)
        write(area / f"copy/{each % 5}/extra/{each}", b"extra %d" % each)
    words: list[Argument] = ["--mirror", "--backup", area / "kept", f"{area}/source/", area / "copy"]

    def kept() -> int:
        return sum(len(files) for _, _, files in os.walk(area / "kept"))

    for limit in (number // 3, number + number // 2):
        name = stopped(
            area,
            env,
            *words,
            ranks=2,
            number=signal.SIGKILL,
            until=lambda limit=limit: kept() > limit,  # type: ignore[misc]
            slow=("linkat,renameat,unlinkat", 4),
        )
        for each in range(number):
            olds = (b"old %d" % each, area / f"kept/{each % 5}/{each}", area / f"copy/{each % 5}/{each}")
            extras = (b"extra %d" % each, *(area / f"{top}/{each % 5}/extra/{each}" for top in ("kept", "copy")))
            for content, *places in (olds, extras):
                assert any(path.exists() and path.read_bytes() == content for path in map(Path, places)), places  # type: ignore[arg-type]
        if limit == number // 3:
            succeed("--discard", name, env=env)
    succeed("--resume", name, ranks=3, env=env)
    assert differences(area / "source", area / "copy") == []
    assert kept() == 2 * number and not list((area / "kept").rglob("*~"))


def test_resume_backs_up_files_saved_before_or_during_the_job(area: Path) -> None:
    """A recent modification time does not prove that the job created the file."""
    env = {"XDG_STATE_HOME": str(area / "state")}
    copy, kept = area / "copy", area / "kept"
    words: list[Argument] = ["--mirror", "--backup", kept, f"{area}/source/", copy]
    name = stopped_while_saving(area, kept, env, *words)
    olds = [path.name for path in copy.iterdir() if path.read_bytes() == b"older"]
    assert len(olds) > 9
    for each in olds[::2]:
        (copy / each).write_bytes(b"saved meanwhile")
    succeed("--resume", name, env=env)
    assert differences(area / "source", copy) == []
    for index, each in enumerate(olds):
        there = {path.read_bytes() for path in kept.glob(f"{each}*") if path.name.split(".")[0] == each}
        assert (b"older" if index % 2 else b"saved meanwhile") in there


REFUSALS: dict[str, tuple[list[str], bytes]] = {
    "another file system": (["--backup", "/proc/x", "{}/source/", "{}/copy"], b"not on the file system of"),
    "in the source": (["--backup", "{}/source/old", "{}/source/", "{}/copy"], b"lies in"),
    "where the source has something": (
        ["--backup", "a", "{}/source/", "{}/copy"],
        b"source/a would be copied to that path",
    ),
    "around DST": (["--backup", "{}", "{}/source/", "{}/copy"], b"is or contains"),
    "DST": (["--backup", ".", "{}/source/", "{}/copy"], b"is or contains"),
    "a file": (["--backup", "{}/copy/a/small", "{}/source/", "{}/copy"], b"not a directory"),
    "in place": (["--backup", "old", "--inplace", "{}/source/", "{}/copy"], b"--inplace"),
    "empty": (["--backup", "", "{}/source/", "{}/copy"], b"empty string"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_command_changes_nothing_and_names_the_cause(trees: Path, case: str) -> None:
    words, why = REFUSALS[case]
    before = snapshot(trees)
    run = pcopy(*(word.format(trees) for word in words))
    assert run.returncode == 2 and why in run.stderr, show(run)
    assert changes(before, snapshot(trees)) == []


def test_symlinks_in_the_backup_are_not_followed(area: Path) -> None:
    require_root("plant links")
    (area / "outside").mkdir()
    write(area / "source/a/file", b"new")
    write(area / "copy/a/file", b"old")
    (area / "kept").mkdir()
    (area / "kept/a").symlink_to(area / "outside")
    os.chown(area / "kept/a", NOBODY, NOBODY, follow_symlinks=False)
    run = pcopy("--backup", area / "kept", f"{area}/source/", area / "copy")
    assert run.returncode == 0, show(run)
    assert os.listdir(area / "outside") == [] and (area / "kept/a.~1~/file").read_bytes() == b"old"


def test_directory_gets_a_number_if_the_backup_has_a_file_of_its_name(area: Path) -> None:
    """Two runs use the same backup: the first moves a file there, the second a directory of the same name."""
    backup: list[Argument] = ["--mirror", "--backup", area / "kept"]
    write(area / "source/stays", b"")
    write(area / "copy/a", b"was a file")
    succeed(*backup, f"{area}/source/", area / "copy")
    write(area / "copy/a/inner", b"was in a directory")
    succeed(*backup, f"{area}/source/", area / "copy")
    assert (area / "kept/a").read_bytes() == b"was a file"
    assert (area / "kept/a.~1~/inner").read_bytes() == b"was in a directory"
    assert not (area / "copy/a").exists()


def test_symlinks_in_the_backup_path_are_followed_only_at_start(area: Path) -> None:
    """The path is resolved once, and later opened without following symbolic links, so that nobody can redirect it."""
    write(area / "source/a", b"new")
    write(area / "copy/a", b"older")
    (area / "elsewhere").mkdir()
    (area / "way").symlink_to("elsewhere")
    succeed("--backup", area / "way/kept", f"{area}/source/", area / "copy")
    assert (area / "elsewhere/kept/a").read_bytes() == b"older"
    write(area / "source/a", b"newest")
    trace = area / "trace"
    wrap = ["strace", "-f", "-qq", "-o", trace, "-e", "trace=openat"]
    succeed("--backup", area / "way/kept", f"{area}/source/", area / "copy", ranks=1, wrap=wrap)
    entered = [line for line in trace.read_text().splitlines() if '"kept"' in line]
    assert entered and all("O_NOFOLLOW" in line for line in entered)
    assert f'"{area}/elsewhere/kept"' not in trace.read_text()


def test_deep_directory_is_moved_to_the_backup_with_few_descriptors(area: Path) -> None:
    """The tree is deeper than Python's recursion limit, and deeper than the limit of open files."""
    (area / "source").mkdir()
    (area / "copy").mkdir()
    levels, at = 1050, os.open(area / "copy", os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    words: list[Argument] = ["--mirror", "--delete-all", "--backup", area / "kept", f"{area}/source/", area / "copy"]
    run = pcopy(*words, wrap=["prlimit", "--nofile=128"])
    assert run.returncode == 0 and os.listdir(area / "copy") == [], show(run)
    found = subprocess.run(["find", "."], cwd=area / "kept", capture_output=True, check=True).stdout.split(b"\n")
    assert len(found) == levels + 3 and b"." + b"/d" * levels + b"/file" in found


def test_backup_name_too_long_for_a_number_is_truncated(area: Path) -> None:
    """The name is not cut within a character. Several names share the same beginning."""
    names = [
        os.fsdecode(b"\xff" * 255),
        *(text + end for text in ("n" * 253, "n" + "\u6f22" * 84) for end in ("xx", "xy")),
    ]
    for night in range(4):
        for number, name in enumerate(names):
            write(area / "source" / name, b"%d %d" % (number, night), NOW + night * 10**10)
        succeed("--existing", "changed", "--backup", area / "kept", f"{area}/source/", area / "copy")
    found = {path.name: path.read_bytes() for path in (area / "kept").iterdir()}
    assert sorted(found.values()) == [b"%d %d" % (number, night) for number in range(len(names)) for night in range(3)]
    for name, content in found.items():
        stem = os.fsencode(name.partition(".~")[0])
        assert len(stem) > 246 and os.fsencode(names[int(content[:1])]).startswith(stem)
        assert content.startswith(b"0") or stem.decode()


@pytest.mark.parametrize("gaps", [(), (1,), (2, 37), (64, 63, 33)])
def test_free_backup_number_is_found_with_few_system_calls(area: Path, gaps: tuple[int, ...]) -> None:
    write(area / "source/file", b"new")
    write(area / "copy/file", b"older")
    numbers = [number for number in range(100) if number not in gaps]
    for number in numbers:
        write(area / (f"kept/file.~{number}~" if number else "kept/file"), b"%d" % number)
    trace = area / "trace"
    wrap = ["strace", "-f", "-qq", "-o", trace, "-e", "trace=linkat,newfstatat,statx", "-P", area / "kept"]
    succeed("--backup", area / "kept", f"{area}/source/", area / "copy", ranks=1, wrap=wrap)
    (new,) = {path for path in (area / "kept").iterdir() if path.read_bytes() == b"older"}
    assert int(new.name.split("~")[1]) not in numbers
    for number in numbers:
        assert (area / (f"kept/file.~{number}~" if number else "kept/file")).read_bytes() == b"%d" % number
    assert len([line for line in trace.read_text().splitlines() if "file" in line]) < 20


def test_item_backed_up_before_a_failed_removal_is_not_backed_up_twice(area: Path) -> None:
    """A failing ``unlinkat`` replaces the kill: first for a file with a number, then for a directory."""
    (area / "source").mkdir()
    backup: list[Argument] = ["--mirror", "--delete-all", "--backup", area / "kept", f"{area}/source/", area / "copy"]
    for number in range(3):
        write(area / "copy/extra/file", b"%d" % number)
        (area / "copy/extra").chmod(0o755)
        fault = Fault(area / "trace", ["unlinkat"], None, "EIO", when="1")
        run = pcopy(*backup, "--checkpoint", "none", ranks=1, wrap=fault.wrap())
        fault.check()
        assert run.returncode == 1, show(run)
        fault = Fault(area / "trace", ["unlinkat"], None, "EIO", when="2")
        run = pcopy(*backup, "--checkpoint", "none", ranks=1, wrap=fault.wrap())
        fault.check()
        assert run.returncode == 1, show(run)
        succeed(*backup, "--checkpoint", "none", ranks=1)
    found = {path.name: [inner.read_bytes() for inner in path.iterdir()] for path in (area / "kept").iterdir()}
    assert found == {"extra": [b"0"], "extra.~1~": [b"1"], "extra.~2~": [b"2"]}


def test_backup_works_if_hard_links_are_refused(trees: Path) -> None:
    copy, kept = trees / "copy", trees / "kept"
    succeed("-T", copy, trees / "before")
    write(kept / "extra/deep/file", b"of another night")
    for path in (kept, kept / "extra", kept / "extra/deep"):
        path.chmod(0o700)
    fault = Fault(trees / "trace", ["linkat"], None, "EPERM")
    run = pcopy("--mirror", "--backup", kept, "--no-preserve", "links", f"{trees}/source/", copy, wrap=fault.wrap())
    fault.check()
    assert run.returncode == 0, show(run)
    (kept / "extra/deep/file").rename(trees / "aside")
    (kept / "extra/deep/file.~1~").rename(kept / "extra/deep/file")
    assert_backed_up(trees / "before", kept)
    assert (trees / "aside").read_bytes() == b"of another night"


def test_backup_directories_are_reused_on_file_systems_without_modes(area: Path) -> None:
    with bindfs(area, "--perms=0755", "--chmod-ignore") as (_, point):
        for number in range(3):
            for file in range(40):
                write(area / f"source/a/{file}/file", b"%d" % number, NOW + number * 10**10)
            succeed("--existing", "changed", "--backup", ".old", f"{area}/source/", point / "copy", ranks=1)
        found = {str(path.relative_to(point / "copy/.old")) for path in (point / "copy/.old").rglob("file*")}
    assert {name.partition("/")[0] for name in found} == {"a", "a.~1~"} and len(found) == 80
