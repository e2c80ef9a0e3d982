"""A run counts as copied what it has changed: a directory only if it is new, or if its metadata differed before."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from itertools import product
from pathlib import Path

import pytest

from tests.support.command import Argument, pcopy, show, start, succeed, summary
from tests.support.extent import seed
from tests.support.faults import Fault
from tests.support.files import NOW, write
from tests.support.oracle import differences
from tests.support.users import require_root

COPIED = ("copied", "files", "directories", "symlinks", "special", "hardlinks", "mended", "deleted", "bytes")
EARLIER = NOW - 10**12


def make_tree(top: Path) -> int:
    """Make a tree with items of all types, and return their number."""
    for number in range(30):
        write(top / f"{number % 4}/{number % 3}/{number}", b"x" * number)
    os.link(top / "0/0/0", top / "1/again")
    (top / "2/link").symlink_to("nowhere")
    os.mkfifo(top / "3/fifo")
    (top / "empty").mkdir()
    (top / "3").chmod(0o750)
    return 1 + sum(1 for _ in top.rglob("*"))


def metadata(path: Path) -> tuple[object, ...]:
    """Return the metadata of a directory, as far as a copy preserves them."""
    status = path.lstat()
    names = sorted(os.listxattr(path))
    attributes = [(name, os.getxattr(path, name)) for name in names]
    return status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, attributes


def directories(top: Path) -> dict[Path, tuple[object, ...]]:
    return {path: metadata(path) for path in (top, *top.rglob("*")) if path.is_dir() and not path.is_symlink()}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("policy", ["changed", "newer", "skip", "mirror", "checksum"])
def test_second_run_counts_nothing_as_copied(area: Path, policy: str, ranks: int) -> None:
    found = make_tree(area / "source")
    succeed(f"{area}/source/", area / "copy", ranks=ranks)
    options: dict[str, list[Argument]] = {"mirror": ["--mirror"], "checksum": ["--mirror", "--checksum"]}
    for more in ([], ["--verify"], ["--dry-run"], ["-v"]):
        words = *options.get(policy, ["--existing", policy]), *more
        run = succeed("--json", *words, f"{area}/source/", area / "copy", ranks=ranks)
        reported = summary(run)
        assert {each: reported[each] for each in COPIED} == dict.fromkeys(COPIED, 0), show(run)
        assert (reported["found"], reported["skipped"], reported["failed"]) == (found, found, 0), show(run)


@pytest.mark.parametrize("ranks", [1, 3])
def test_directories_with_right_metadata_are_skipped_if_files_are_replaced(area: Path, ranks: int) -> None:
    found = make_tree(area / "source")
    succeed(f"{area}/source/", area / "copy", ranks=ranks)
    number = len(directories(area / "source"))
    for dry in ([], ["--dry-run"]):
        reported = summary(succeed("--json", *dry, f"{area}/source/", area / "copy", ranks=ranks))
        assert (reported["directories"], reported["skipped"], reported["copied"]) == (0, number, found - number)
    assert differences(area / "source", area / "copy") == []


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("listed", [False, True], ids=["tree", "files-from"])
def test_directories_count_as_copied_if_their_metadata_are_others_afterwards(
    area: Path, listed: bool, ranks: int
) -> None:
    """The status of all directories before and after the run shows which ones have changed."""
    require_root("give directories away")
    make_tree(area / "source")
    (area / "all").write_text(
        "".join(f"{path.relative_to(area / 'source')}\n" for path in (area / "source").rglob("*"))
    )
    succeed(f"{area}/source/", area / "copy")
    generator = random.Random(seed())
    changes = (
        lambda path: os.utime(path, ns=(EARLIER, EARLIER)),
        lambda path: path.chmod(path.stat().st_mode ^ 0o022),
        lambda path: os.chown(path, 1234, 5678),
        lambda path: os.setxattr(path, "user.extra", b"value"),
        lambda path: [file.unlink() for file in path.iterdir() if file.is_file()],
        lambda path: write(path / "extra", b"extra"),
    )
    words = ["--files-from", area / "all"] if listed else ["--delete"]
    for _ in range(4):
        for path in directories(area / "copy"):
            if not generator.randrange(3):
                generator.choice(changes)(path)
        for path in directories(area / "source"):
            if not generator.randrange(4):
                write(path / f"new{generator.randrange(10**6)}", b"new")
                status = (area / "copy" / path.relative_to(area / "source")).stat()
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the times are equal before the run
        for part in ("copy/3", "copy/0/1"):
            if generator.randrange(2):
                for path in (area / part).rglob("*"):
                    if not path.is_dir():
                        path.unlink()
        arguments: list[Argument] = ["--json", "--existing", "changed", *words, f"{area}/source/", area / "copy"]
        before = directories(area / "copy")
        forecast = summary(succeed("--dry-run", *arguments, ranks=ranks))
        assert directories(area / "copy") == before
        run = succeed(*arguments, ranks=ranks)
        reported, after = summary(run), directories(area / "copy")
        assert reported["directories"] == sum(before.get(path) != after[path] for path in after), show(run)
        assert reported["found"] == reported["copied"] + reported["skipped"], show(run)
        keys = ("found", "skipped", "mended", *COPIED)
        assert {each: forecast[each] for each in keys} == {each: reported[each] for each in keys}, show(run)


def test_directories_of_an_ordinary_user_without_permissions_are_skipped(area: Path) -> None:
    """The job adds the permissions while it runs."""
    require_root("become somebody else")
    make_tree(area / "source")
    for path in directories(area / "source"):
        path.chmod(0o555)
    for path in (area / "source", *(area / "source").rglob("*")):
        os.chown(path, 1234, 1234, follow_symlinks=False)
    (area / "copies").mkdir()
    os.chown(area / "copies", 1234, 1234)
    words = "--json", "--existing", "changed", f"{area}/source/", area / "copies/copy"
    succeed(*words, user=1234)
    number = len(directories(area / "copies/copy"))
    (area / "copies/copy/0/2/8").unlink()
    os.utime(area / "copies/copy/0/2", ns=(NOW, (area / "source/0/2").stat().st_mtime_ns))
    reported = summary(succeed(*words, user=1234))
    assert (reported["directories"], reported["copied"]) == (0, 1)
    assert len(directories(area / "copies/copy")) == number


@pytest.mark.parametrize("user", [None, 1234], ids=["root", "user"])
@pytest.mark.parametrize("policy", ["changed", "skip", "mirror"])
def test_directories_with_acls_and_few_permissions_are_skipped(area: Path, policy: str, user: int | None) -> None:
    """One directory for each mode, with each set of attributes, at the top and at several depths. Permissions that the
    job adds while it runs are a part of the access ACL.
    """
    require_root("become somebody else")
    acls: tuple[list[str], ...] = (
        [],
        ["-m", "u:1235:rx"],
        ["-m", "g:55:---"],
        ["-d", "-m", "u:1235:rx"],
        ["-m", "u:1235:rwx", "-m", "d:g:55:r"],
    )
    modes = 0o500, 0o550, 0o555, 0o700, 0o2750, *((0o000, 0o300) if user is None else ())
    made = []
    for number, (mode, acl) in enumerate(product(modes, acls)):
        for below in ("", "a", "a/b"):
            path = area / "source" / f"{mode:o}-{number}" / below
            path.mkdir(parents=True)
            made.append((path, mode, acl))
    made.append((area / "source", 0o500, acls[1]))
    for number, (path, mode, acl) in enumerate(reversed(made)):
        write(path / "file", b"contents")
        path.chmod(mode)
        subprocess.run(["setfacl", *acl, path], check=True) if acl else None
        os.setxattr(path, "user.some", b"value") if number % 2 else None
    (area / "copies").mkdir()
    if user is not None:
        for path in (area / "copies", area / "source", *(area / "source").rglob("*")):
            os.chown(path, user, user)
    options = ["--mirror"] if policy == "mirror" else ["--existing", policy]
    words: list[Argument] = ["--json", *options, f"{area}/source/", area / "copies/copy"]
    succeed(*words, user=user)
    before = directories(area / "copies/copy")
    assert before == {area / "copies/copy" / path.relative_to(area / "source"): metadata(path) for path, *_ in made}
    run = succeed(*words, user=user, ranks=2)
    reported = summary(run)
    assert {each: reported[each] for each in COPIED} == dict.fromkeys(COPIED, 0), show(run)
    assert reported["skipped"] == 2 * len(made), show(run)
    assert directories(area / "copies/copy") == before


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_directories_are_counted_by_what_they_were_before_the_first_run(area: Path, sent: int) -> None:
    """The first run writes into all of them, which changes their times, and is ended before it finishes them."""
    for number in range(60):
        write(area / f"source/{number % 6}/{number}", bytes(200_000))
    (area / "copy").mkdir()
    for number in range(5):
        (area / f"copy/{number}").mkdir()
    (area / "copy/4").chmod(0o700)
    for path in (area / "source", *(area / f"source/{number}" for number in range(6))):
        os.utime(path, ns=(NOW, NOW))
    for path in directories(area / "copy"):
        path.chmod(path.stat().st_mode & 0o700 | (area / "source").stat().st_mode & 0o077 * (path.name != "4"))
        os.utime(path, ns=(NOW, NOW if path.name not in ("2", "3") else EARLIER))
    env = {"XDG_STATE_HOME": str(area / "state")}
    words: list[Argument] = ["--bwlimit", "2M", "--checkpoint-interval", "0.1", f"{area}/source/", area / "copy"]
    run = start(*words, ranks=2, env=env)
    deadline = time.monotonic() + 60
    while sum(1 for path in (area / "copy").rglob("*") if path.is_file()) < 20:
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(run.pid, sent)
    run.wait()
    resumed = pcopy("--resume", "--json", "--bwlimit", "0", ranks=1, env=env)
    reported = summary(resumed)
    # 2 and 3 had other times, 4 another mode, 5 is new; the others, and the top, had the right metadata
    assert (reported["directories"], reported["skipped"], reported["files"]) == (4, 3, 60), show(resumed)
    assert (reported["found"], reported["failed"]) == (67, 0)
    assert differences(area / "source", area / "copy") == []


@pytest.mark.parametrize("when", ["1", "2", "1+"])
def test_directory_with_right_metadata_counts_as_failed_once(area: Path, when: str) -> None:
    """It cannot be finished first, or again after a repair; a resumed job finishes it, and it is skipped."""
    for name in ("old", "new"):
        write(area / "source/inner" / name, name.encode() * 1000)
    subprocess.run(["cp", "-a", area / "source", area / "copy"], check=True)
    (area / "copy/inner/new").unlink()
    with (area / "copy/inner/old").open("r+b") as file:
        file.write(b"damaged")
    os.utime(area / "copy/inner/old", ns=(NOW, NOW))
    os.utime(area / "copy/inner", ns=(NOW, (area / "source/inner").stat().st_mtime_ns))
    fault = Fault(area / "trace", ["utimensat"], area / "copy/inner", "EIO", when)
    env = {"XDG_STATE_HOME": str(area / "state")}
    words = ("--json", "--repair", "--existing", "changed", f"{area}/source/", area / "copy")
    run = pcopy(*words, ranks=1, env=env, wrap=fault.wrap())
    fault.check()
    reported = summary(run)
    numbers = ("found", "files", "directories", "skipped", "failed")
    assert (run.returncode, [reported[each] for each in numbers]) == (1, [4, 2, 0, 1, 1]), show(run)
    reported = summary(succeed("--resume", "--json", env=env))
    assert [reported[each] for each in numbers] == [4, 2, 0, 2, 0]
    assert differences(area / "source", area / "copy") == []
