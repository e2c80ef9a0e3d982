"""``--dry-run`` and ``-v`` list what is changed, and what differs. rsync says what has to be listed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.attributes import acl
from tests.support.command import Argument, Completed, show, succeed, summary
from tests.support.files import NOW, write
from tests.support.oracle import differences
from tests.support.users import require_root

EARLIER = NOW - 10**12
ACTIONS = ("copy", "replace", "meta", "skip", "delete")
LETTERS = {"s": "size", "t": "time", "p": "mode", "o": "owner", "g": "owner", "a": "acl", "x": "xattr"}
"""Letters of ``rsync --itemize-changes``, and the words for them."""

Change = Callable[[Path], object]


def set_time(path: Path, time: int = EARLIER) -> None:
    os.utime(path, ns=(time, time), follow_symlinks=False)


def replace_by(make: Callable[[Path], object]) -> Change:
    """Remove the item and make another one of the same time in its place."""

    def change(path: Path) -> None:
        path.unlink() if not path.is_dir() or path.is_symlink() else path.rmdir()
        make(path)
        set_time(path, NOW)

    return change


def content(text: bytes, time: int = NOW) -> Change:
    def change(path: Path) -> None:
        path.write_bytes(text)
        set_time(path, time)

    return change


def enlarge_with_attribute(path: Path) -> None:
    content(b"longer")(path)
    os.setxattr(path, "user.name", b"value")


SITUATIONS: dict[str, tuple[str, Callable[[Path], object], Change, str]] = {
    "equal": ("file", lambda path: path.write_bytes(b"text"), lambda path: None, "skip"),
    "new": ("file", lambda path: path.write_bytes(b"text"), lambda path: path.unlink(), "copy"),
    "size": ("file", lambda path: path.write_bytes(b"text"), content(b"longer"), "replace size"),
    "size and time": ("file", lambda path: path.write_bytes(b"text"), content(b"longer", EARLIER), "replace size,time"),
    "time": ("file", lambda path: path.write_bytes(b"text"), set_time, "meta time"),
    "text": ("file", lambda path: path.write_bytes(b"text"), content(b"TEXT", EARLIER), "replace time,content"),
    "hidden": ("file", lambda path: path.write_bytes(b"text"), content(b"TEXT"), "hidden"),
    "mode": ("file", lambda path: path.write_bytes(b"text"), lambda path: path.chmod(0o600), "meta mode"),
    "owner": ("file", lambda path: path.write_bytes(b"text"), lambda path: os.chown(path, 12, -1), "meta owner"),
    "group": ("file", lambda path: path.write_bytes(b"text"), lambda path: os.chown(path, -1, 12), "meta owner"),
    "acl": (
        "file",
        lambda path: path.write_bytes(b"text"),
        lambda path: os.setxattr(path, "system.posix_acl_access", acl(6, 4, 4, {55: 4})),
        "meta mode,acl",
    ),
    "xattr": (
        "file",
        lambda path: path.write_bytes(b"text"),
        lambda path: os.setxattr(path, "user.name", b"value"),
        "meta xattr",
    ),
    "size and xattr": (
        "file",
        lambda path: path.write_bytes(b"text"),
        enlarge_with_attribute,
        "replace size,xattr",
    ),
    "large": (
        "file",
        lambda path: path.write_bytes(bytes(9 << 20)),
        content(b"x" * (9 << 20), EARLIER),
        "replace time,content",
    ),
    "large of other size": ("file", lambda path: path.write_bytes(bytes(9 << 20)), content(b""), "replace size"),
    "type": ("file", lambda path: path.write_bytes(b"text"), replace_by(Path.mkdir), "replace type"),
    "directory over file": (
        "directory",
        Path.mkdir,
        replace_by(lambda path: path.write_bytes(b"")),
        "replace type",
    ),
    "equal directory": ("directory", Path.mkdir, lambda path: None, "skip"),
    "new directory": ("directory", Path.mkdir, lambda path: path.rmdir(), "copy"),
    "directory time": ("directory", Path.mkdir, set_time, "meta time"),
    "directory mode": ("directory", Path.mkdir, lambda path: path.chmod(0o700), "meta mode"),
    "directory owner": ("directory", Path.mkdir, lambda path: os.chown(path, 12, 13), "meta owner"),
    "directory xattr": ("directory", Path.mkdir, lambda path: os.setxattr(path, "user.name", b"value"), "meta xattr"),
    "directory acl": (
        "directory",
        Path.mkdir,
        lambda path: os.setxattr(path, "system.posix_acl_default", acl(7, 5, 5, {55: 4})),
        "meta acl",
    ),
    "link": ("symlink", lambda path: path.symlink_to("there"), lambda path: None, "skip"),
    "link text": (
        "symlink",
        lambda path: path.symlink_to("there"),
        replace_by(lambda path: path.symlink_to("where")),
        "replace content",
    ),
    "link time": ("symlink", lambda path: path.symlink_to("there"), set_time, "meta time"),
    "fifo": ("fifo", os.mkfifo, lambda path: None, "skip"),
    "fifo mode": ("fifo", os.mkfifo, lambda path: path.chmod(0o600), "meta mode"),
    "device": (
        "character",
        lambda path: os.mknod(path, 0o20644, os.makedev(1, 3)),
        replace_by(lambda path: os.mknod(path, 0o20644, os.makedev(1, 5))),
        "replace content",
    ),
}
"""For each name: its type, how it is made in the source, how its copy is changed, and what a run does with it."""


def prepare(area: Path) -> None:
    source, copy = area / "source", area / "copy"
    source.mkdir()
    for name, (_, make, _, _) in SITUATIONS.items():
        make(source / name)
    for name in ("linked", "apart"):
        write(source / f"{name} 1", name.encode())
        os.link(source / f"{name} 1", source / f"{name} 2")
    for path in (*source.iterdir(), source):
        set_time(path, NOW)
    subprocess.run(["cp", "-a", source, copy], check=True)
    for name, (_, _, change, _) in SITUATIONS.items():
        change(copy / name)
    (copy / "apart 2").unlink()
    subprocess.run(["cp", "-a", copy / "apart 1", copy / "apart 2"], check=True)
    for name in SITUATIONS:  # the changes have set the times of directories in which they made something
        if (copy / name).is_dir() and name != "directory time" and not (copy / name).is_symlink():
            set_time(copy / name, NOW)
    write(copy / "extra/inner", b"")
    set_time(copy, NOW)


def listed(lines: list[bytes], area: Path) -> dict[str, str]:
    """Return the action of each item, followed by the words for what differs."""
    found = {}
    for line in lines:
        words = line.decode().split(f" {area}/", 1)
        if len(words) == 2 and words[0].split()[0] in ACTIONS:
            path = words[1].partition("/")[2]
            assert path not in found
            found[path] = words[0]
    return found


def itemized(area: Path, *options: str) -> dict[str, set[str]]:
    """Return what differs in each item that rsync lists, without what it does not distinguish from a new item."""
    words = ["rsync", "-aniHAX", "--modify-window=-1", *options, f"{area}/source/", f"{area}/copy"]
    lines = subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
    return {
        line[12:].partition(" => ")[0].partition(" -> ")[0].rstrip("/"): {
            LETTERS[each] for each in line[2:11] if each in LETTERS
        }
        for line in lines
    }


def lines_of(run: Completed, options: tuple[str, ...]) -> list[bytes]:
    return (run.stdout if "--dry-run" in options[-1] else run.stderr).splitlines()


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("checksum", [False, True], ids=["", "checksum"])
@pytest.mark.parametrize("program", ["psync", "pcopy"])
def test_same_items_as_by_rsync_are_listed(area: Path, program: str, checksum: bool, ranks: int) -> None:
    require_root("make devices and give files away")
    prepare(area)
    expected = {name: line for name, (*_, line) in SITUATIONS.items() if line not in ("skip", "hidden")}
    expected |= {"apart 2": "replace link"} | ({"hidden": "replace content"} if checksum else {})
    if program == "psync":
        expected |= dict.fromkeys(("extra", "extra/inner"), "delete")
    elif checksum:  # the metadata of files that are kept are not changed then
        kept = ("time", "mode", "owner", "group", "acl", "xattr", "link time", "fifo mode")
        expected = {name: line for name, line in expected.items() if name not in kept}
    flags = ["--checksum"] if checksum else []
    by_rsync = itemized(area, *flags, *(["--delete"] if program == "psync" else []))
    if program == "psync" or not checksum:
        assert expected.keys() == by_rsync.keys()
    for name, seen in by_rsync.items():
        if expected.get(name, "copy") not in ("copy", "delete", "replace type", "replace link"):
            assert set(expected[name].split()[1].split(",")) - {"content"} == seen, name
    words: list[Argument] = [*flags, *([] if program == "psync" else ["--existing", "changed"])]
    log = area / "log"
    for options in (("--dry-run",), ("--dry-run=all",), ("-vv", "--dry-run"), ("-v",)):
        run = succeed(*words, *options, "--log", log, f"{area}/source/", area / "copy", program=program, ranks=ranks)
        found = listed(lines_of(run, options), area)
        unlisted = {name: action for name, action in found.items() if action == "skip"}
        assert {name: each for name, each in found.items() if name not in unlisted} == expected, show(run)
        total = 1 + len(SITUATIONS) + 4
        skipped = total - len([name for name in expected if not name.startswith("extra")])
        assert len(unlisted) == (skipped if "-vv" in options or "--dry-run=all" in options else 0), show(run)
        assert (f"not listed: {skipped} items".encode() in run.stdout) == (options == ("--dry-run",)), show(run)
        logged = [json.loads(line) for line in log.read_bytes().splitlines()]
        assert len(logged) == total + 2 * (program == "psync")
        for line in logged:
            name = line["path"].removeprefix(f"{area}/").partition("/")[2]
            assert f"{line['action']} {line.get('change', '')}".strip() == expected.get(name, "skip"), line
    if program == "psync":
        (area / "copy/hidden").unlink(missing_ok=checksum)
        succeed(*words, f"{area}/source/", area / "copy", program=program)
        assert differences(area / "source", area / "copy") == []


def test_summary_of_equal_trees_is_all_that_a_dry_run_prints(area: Path) -> None:
    for number in range(50):
        write(area / f"source/{number % 5}/{number}", b"")
    succeed(f"{area}/source/", area / "copy")
    run = succeed("--dry-run", f"{area}/source/", area / "copy", program="psync")
    assert listed(run.stdout.splitlines(), area) == {} and b"not listed: 56 items that are skipped" in run.stdout
    reported = summary(succeed("--dry-run", "--json", f"{area}/source/", area / "copy", program="psync"))
    assert reported["actions"] == {"copy": 0, "replace": 0, "meta": 0, "delete": 0, "skip": 56, "fail": 0}
    run = succeed("-v", f"{area}/source/", area / "copy", program="psync")
    assert listed(run.stderr.splitlines(), area) == {}


@pytest.mark.parametrize("policy", ["newer", "replace"])
def test_differences_of_files_that_other_policies_replace(area: Path, policy: str) -> None:
    for name, there in {"same": b"text", "other": b"longer"}.items():
        write(area / f"source/{name}", b"text")
        write(area / f"copy/{name}", there, EARLIER)
    (area / "copy/other").chmod(0o600)
    os.utime(area / "copy", ns=(NOW, (area / "source").stat().st_mtime_ns))
    expected = {"same": "replace time", "other": "replace size,time,mode"}
    for option in ("--dry-run", "-v"):
        run = succeed("--existing", policy, option, f"{area}/source/", area / "copy")
        assert listed(lines_of(run, (option,)), area) == expected, show(run)
