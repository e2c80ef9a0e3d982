"""``--files-from`` copies the same items as rsync with the same list, including their parent directories."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import pcopy, pverify, show, start, succeed, summary
from tests.support.extent import everything, seed
from tests.support.files import write
from tests.support.oracle import differences
from tests.support.trees import random_tree
from tests.support.users import is_root


def sample_paths(tree: Path, seed: int) -> list[bytes]:
    """Return a third of the items of a tree that are not directories, in random order."""
    top = bytes(tree) + b"/"
    listed = subprocess.run(["find", tree, "!", "-type", "d", "-print0"], check=True, capture_output=True).stdout
    chosen = [path.removeprefix(top) for path in sorted(listed.split(b"\0")[:-1])]
    return random.Random(seed).sample(chosen, len(chosen) // 3)


@pytest.mark.parametrize("ranks", [1, 3])
def test_listed_files_are_copied_as_by_rsync(area: Path, ranks: int) -> None:
    random_tree(area / "source", seed(), files=400, largest=1 << 20, privileged=is_root())
    listed = b"\0".join([*(paths := sample_paths(area / "source", seed())), b"./" + paths[0], b"/" + paths[1], b""])
    (area / "list").write_bytes(
        listed.replace(b"/" + paths[1] + b"\0", bytes(area / "source") + b"/" + paths[1] + b"\0")
    )
    reported = summary(
        succeed("--json", "-0", "--files-from", area / "list", f"{area}/source/", area / "copy", ranks=ranks)
    )
    (area / "list").write_bytes(b"\0".join([*paths, b""]))
    command = ["rsync", "-aHAXS", "--from0", f"--files-from={area / 'list'}", f"{area}/source/", f"{area}/rsync/"]
    subprocess.run(command, check=True)
    subprocess.run(["rsync", "-aAX", "--exclude=/*", f"{area}/source/", f"{area}/rsync/"], check=True)
    assert differences(area / "rsync", area / "copy") == []
    assert reported["found"] == reported["copied"] and reported["copied"] - reported["directories"] == len(paths)


def test_listed_directory_is_copied_recursively(area: Path) -> None:
    for name in ("a/1", "a/b/2", "a/b/3", "c/4", "c/d/5", "e/6"):
        write(area / "source" / name, name.encode())
    (area / "list").write_text("a\na/b/2\n\n./c//d/\na/1\n")
    reported = summary(succeed("--json", "--files-from", area / "list", f"{area}/source/", area / "copy"))
    shutil.copytree(area / "source", area / "expected")
    shutil.rmtree(area / "expected/e")
    (area / "expected/c/4").unlink()
    for each in ("c", ""):
        shutil.copystat(area / "source" / each, area / "expected" / each)
    assert differences(area / "expected", area / "copy") == []
    assert (reported["files"], reported["directories"]) == (4, 5)
    everything = subprocess.run(["find", "."], cwd=area / "source", check=True, capture_output=True).stdout
    (area / "all").write_bytes(everything)
    assert summary(succeed("--json", "--files-from", area / "all", area / "source", area / "all-copied"))["found"] == 12
    assert differences(area / "source", area / "all-copied") == []


def test_list_is_read_from_a_pipe(area: Path) -> None:
    for name in ("new\nline", "plain", "other"):
        write(area / "source/sub" / name, b"")
    command = (
        f"cd {area}/source && find . -name '*n*' -type f -print0 | {python('pcopy')} -q -0 --files-from - . {area}/copy"
    )
    subprocess.run(["sh", "-c", command], check=True)
    assert sorted(path.name for path in (area / "copy/sub").iterdir()) == ["new\nline", "plain"]


def test_saved_listing_is_relative_to_the_directory_of_its_walk(area: Path) -> None:
    """The paths are relative to the working directory of the walk, not to the current one."""
    for name in ("a/1", "a/2\udcff", "b/3", "left"):
        write(area / "source" / name, name.encode("utf-8", "surrogateescape"))
    odd = base64.b64encode(b"../source/a/2\xff").decode()
    lines: list[dict[str, Any]] = [
        {"format": "pcopy listing", "version": 1, "directory_b64": base64.b64encode(bytes(area / "work")).decode()},
        {"path": "../source/a/1", "type": "file", "inode": 7},
        {"path": "../source/a/2\\xff", "path_b64": odd, "type": "file"},
        {"path": f"{area}/source/b", "type": "directory"},
    ]
    listing = area / "listing"
    listing.write_text("".join(json.dumps(line) + "\n" for line in lines))
    reported = summary(succeed("--json", "--files-from", listing, f"{area}/source/", area / "copy"))
    shutil.copytree(area / "source", area / "expected")
    (area / "expected/left").unlink()
    shutil.copystat(area / "source", area / "expected")
    assert differences(area / "expected", area / "copy") == [] and reported["files"] == 3
    for damage, why in (
        ("{}", "line 5: has no path"),
        ('{"path": "a/1", "type": "file"}', "line 5: a/1 does not lie in "),
    ):
        listing.write_text("".join(json.dumps(line) + "\n" for line in lines) + damage + "\n")
        refused = pcopy("--files-from", listing, f"{area}/source/", area / "other")
        assert refused.returncode == 2 and f"--from {listing}: {why}".encode() in refused.stderr
    assert not (area / "other").exists()


def test_patterns_are_read_from_a_pipe(area: Path) -> None:
    """With a configuration file the command line is parsed twice, but the pipe can be read only once."""
    for name in ("a.o", "a.c", "b.tmp"):
        write(area / "source" / name, b"")
    (area / "set.yaml").write_text("quiet: true\nexclude: ['*.tmp']\n")
    command = f"echo '*.o' | {python('pcopy')} --config {area}/set.yaml --exclude-from - {area}/source/ {area}/copy"
    subprocess.run(["sh", "-c", command], check=True)
    assert [path.name for path in (area / "copy").iterdir()] == ["a.c"]


def test_list_lines_may_end_with_carriage_returns(area: Path) -> None:
    """They are accepted as by rsync; a carriage return may also be part of a name."""
    for name in ("a", "sub/b", "left", "sub/end\r"):
        write(area / "source" / name, name.encode())
    (area / "list").write_bytes(b"a\r\n\r\nsub/b\r\n")
    command = ["rsync", "-a", f"--files-from={area / 'list'}", f"{area}/source/", f"{area}/rsync/"]
    subprocess.run(command, check=True)
    succeed("--files-from", area / "list", f"{area}/source/", area / "copy")
    found = [subprocess.run(["find"], cwd=area / name, check=True, capture_output=True) for name in ("rsync", "copy")]
    assert sorted(found[0].stdout.split()) == sorted(found[1].stdout.split())
    (area / "list").write_bytes(b"sub/end\r\n")
    succeed("--files-from", area / "list", f"{area}/source/", area / "other")
    assert [path.name for path in (area / "other/sub").iterdir()] == ["end\r"]


def python(program: str) -> str:
    import sys

    return f"{sys.executable} -m {program}"


def test_missing_listed_items_fail_and_are_retried_by_a_resume(area: Path) -> None:
    write(area / "source/there", b"")
    (area / "list").write_text("there\nmissing/deep/file\nmissing/other\nthere/below\n")
    options: list[Any] = ["--json", "--checkpoint", area / "job", "--files-from", area / "list"]
    first = pcopy(*options, f"{area}/source/", area / "copy", ranks=2)
    reported = summary(first)
    assert (first.returncode, reported["files"], reported["failed"]) == (1, 1, 3)
    assert all(name in first.stderr for name in (b"missing/deep/file: ", b"missing/other: ", b"there/below: "))
    write(area / "source/missing/deep/file", b"late")
    (area / "source/missing").chmod(0o750)
    reported = summary(pcopy("--json", "--resume", area / "job", ranks=1))
    assert (reported["files"], reported["directories"], reported["failed"]) == (2, 3, 2)
    write(area / "source/missing/other", b"later")
    (area / "source/there").unlink()
    write(area / "source/there/below", b"")
    reported = summary(pcopy("--json", "--resume", area / "job", ranks=3))
    assert reported["failed"] == 0 and (area / "copy/there/below").exists()
    assert (area / "copy/missing/other").read_bytes() == b"later" and (area / "copy/missing/deep/file").exists()
    assert (area / "copy/missing").stat().st_mode & 0o777 == 0o750


def test_resumed_job_uses_the_list_read_at_the_start(area: Path) -> None:
    paths = [f"{first}/{second}/{number}" for first in range(30) for second in range(4) for number in range(20)]
    for path in paths:
        write(area / "source" / path, path.encode())
    listed = paths[::2]
    (area / "list").write_text("\n".join(listed))
    command: list[Any] = ["--checkpoint", area / "job", "--files-from", area / "list", f"{area}/source/", area / "copy"]
    for ranks in (2, 1):
        process = start(*command, "--checkpoint-interval=0.05", ranks=ranks)
        until = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < until and not (area / "copy" / listed[20 * ranks]).exists():
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
    (area / "list").write_text("nothing of this")
    reported = summary(succeed("--json", *command, ranks=3))
    found = sorted(str(path.relative_to(area / "copy")) for path in (area / "copy").rglob("*") if path.is_file())
    assert found == sorted(listed) and reported["files"] == len(listed) and reported["directories"] == 151
    assert not (area / "job").exists()


def test_directory_entered_again_by_a_resume_counts_once(area: Path) -> None:
    """Retrying a path of the list enters its parent directories again."""
    write(area / "source/f/1", b"")
    (area / "source").chmod(0o700)
    (area / "list").write_text("f/1\na/miss\na/other/miss\n")
    options: list[Any] = ["--json", "--checkpoint", area / "job", "--files-from", area / "list"]
    first = pcopy(*options, f"{area}/source/", area / "copy")
    again = pcopy("--json", "--resume", area / "job")
    for run in (first, again):
        reported = summary(run)
        assert run.returncode == 1, show(run)
        assert (reported["found"], reported["copied"], reported["failed"]) == (5, 3, 2)
    write(area / "source/a/miss", b"")
    run = pcopy("--json", "--resume", area / "job")
    assert (run.returncode, summary(run)["found"], summary(run)["copied"]) == (1, 6, 5), show(run)
    write(area / "source/a/other/miss", b"")
    reported = summary(succeed("--json", "--resume", area / "job"))
    assert (reported["found"], reported["copied"], reported["directories"]) == (7, 7, 4)


def test_listed_path_through_a_symlink_requires_following_links(area: Path) -> None:
    write(area / "source/sub/a/1", b"")
    (area / "source/sub/la").symlink_to("a")
    (area / "list").write_text("sub/la/1\n")
    run = pcopy("--files-from", area / "list", f"{area}/source/", area / "copy")
    assert run.returncode == 1, show(run)
    assert (
        b"/sub/la/1: open: Not a directory: sub/la is a symbolic link, which only -L follows (ENOTDIR)" in run.stderr
    ), show(run)
    succeed("-L", "--files-from", area / "list", f"{area}/source/", area / "followed")
    assert (area / "followed/sub/la/1").is_file()


def reset_times(tree: Path) -> None:
    """Set all times in a tree to the same value, so that they reveal no change."""
    for path in [tree, *tree.rglob("*")]:
        os.utime(path, ns=(10**18, 10**18))


@pytest.mark.parametrize("each", range(8) if everything() else range(2))
def test_stopped_jobs_with_missing_items_reach_the_same_result(area: Path, each: int) -> None:
    """Signals end the job at random moments, and before each further run some missing items are restored."""
    rng = random.Random(f"{seed()} {each}")
    parts = [f"{one}/{two}" for one in "abcd" for two in "xyz"]
    for part in parts:
        for name in ("1", "2", "deep/3", "deep/4", "deep/er/5"):
            write(area / "source" / part / name, f"{part}/{name}".encode())
    for path in [area / "source", *(area / "source").rglob("*")]:
        path.chmod(rng.choice((0o700, 0o755)))
    reset_times(area / "source")
    every = sorted(str(path.relative_to(area / "source")) for path in (area / "source").rglob("*"))
    missing = rng.sample(["a", "b/x", "c/y/deep", "d/z/deep/er", *rng.sample(every, 6)], 8)
    # Listed parents would be copied without the missing items.
    above = {str(parent) for part in missing for parent in Path(part).parents}
    listed = rng.sample([path for path in every if path not in above], len(every) // 3)
    (area / "list").write_text("\n".join(listed))
    command = ["rsync", "-aHAXr", f"--files-from={area / 'list'}", f"{area}/source/", f"{area}/rsync/"]
    subprocess.run(command, check=True)
    subprocess.run(["rsync", "-aAX", "--exclude=/*", f"{area}/source/", f"{area}/rsync/"], check=True)
    shutil.copytree(area / "source", area / "whole")
    subprocess.run(["rm", "-rf", *(area / "source" / part for part in missing)], check=True)
    reset_times(area / "source")
    options: list[Any] = ["--checkpoint", area / "job", "--files-from", area / "list", f"{area}/source/", area / "copy"]
    done = False
    while not done:
        slow = ["--oplimit=200"] if missing else []
        process = start("--json", "--checkpoint-interval=0.05", *slow, *options, ranks=rng.choice((1, 2, 3)))
        if missing:
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0.1, 1))
            process.send_signal(rng.choice((signal.SIGKILL, signal.SIGTERM)))
        output, errors = process.communicate()
        run = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
        done = run.returncode == 0
        assert run.returncode in ((0, 1, 75, -9, -15) if missing else (0,)), show(run)
        if run.returncode in (0, 1):
            reported = summary(run)
            assert reported["found"] == reported["copied"] + reported["skipped"] + reported["failed"], show(run)
            assert bool(reported["failed"]) == (run.returncode == 1), show(run)
        for part in [missing.pop() for _ in range(min(len(missing), 3))]:
            subprocess.run(["rsync", "-aR", f"{area}/whole/./{part}", f"{area}/source/"], check=True)
        reset_times(area / "source")
    assert differences(area / "rsync", area / "copy") == []
    assert reported["found"] == reported["copied"] == 1 + sum(1 for _ in (area / "copy").rglob("*")), show(run)


def test_list_is_combined_with_signature_and_filters(area: Path) -> None:
    for name in ("a/1.o", "a/1.c", "b/x/2.c", "b/3.c"):
        write(area / "source" / name, name.encode())
    (area / "list").write_text("a\nb/x/2.c\nb/3.c\n")
    filters = ["--exclude=*.o", "--exclude=x"]
    run = succeed(
        *filters, "--files-from", area / "list", "--signature", area / "sig", f"{area}/source/", area / "copy"
    )
    assert b"7 found = 5 copied + 2 skipped + 0 failed" in run.stdout, show(run)
    assert pverify(area / "sig", area / "copy").returncode == 0
    assert pverify(*filters, area / "source", area / "copy").returncode == 0


@pytest.mark.parametrize(
    ("lines", "arguments", "words"),
    [
        ("", (), "lists nothing, so there is nothing to do"),
        ("a\n../b\n", (), "line 2: ../b does not lie in source; list paths below it"),
        ("a/../a\n", (), "line 1: a/../a leads upwards; write the path without .. after a name"),
        ("/etc/passwd\n", (), "line 1: /etc/passwd does not lie in source; list paths below it"),
        ("a\0b\0", (), "write -0"),
        ("a\n" + "x" * (3 << 20), (), "line 2: is longer than any path"),
        ("a\n", ("source", "source/a"), "takes one SRC"),
        ("a\n", ("source/a",), "is not a directory"),
    ],
)
def test_invalid_lists_are_refused(area: Path, lines: str, arguments: Sequence[str], words: str) -> None:
    write(area / "source/a", b"")
    (area / "copy").mkdir()
    (area / "list").write_text(lines)
    run = pcopy("--files-from", area / "list", *(arguments or ["source"]), "copy", cwd=area)
    assert run.returncode == 2 and words.encode() in run.stderr and run.stderr.count(b"\n") == 1, show(run)
    assert not [*(area / "copy").iterdir()]
    for missing in ("nowhere", "source"):
        assert pcopy("--files-from", missing, "source", "copy", cwd=area).returncode == 2
