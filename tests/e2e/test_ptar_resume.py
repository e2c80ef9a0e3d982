"""``ptar -c --resume`` continues an interrupted run; the archive equals that of a single run byte for byte."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.launch.launchers import HYDRA
from tests.support.archives import MIB, ptar
from tests.support.command import Argument, pverify, show
from tests.support.faults import require_strace
from tests.support.files import noise, same_contents
from tests.support.held import held
from tests.support.interrupted_archives import (
    SOON,
    STRACE,
    assert_same,
    damaged,
    go_on,
    interrupt,
    left,
    made,
    replaced,
    truncated,
)
from tests.support.preload import compiled
from tests.support.processes import wait_until

SUPPORT = Path(__file__).parents[1] / "support"
FILES = 975


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree; ``whole.tar`` next to it is the archive of a single run."""
    tree = tmp_path_factory.mktemp("first") / "tree"
    for number in range(FILES):
        directory = tree / f"d{number // 75}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}").write_bytes(os.urandom(8) * (number % 97))
    for number in range(3):
        (tree / f"large{number}").write_bytes(noise(9 * MIB + number))
    with open(tree / "sparse", "wb") as file:
        file.truncate(12 * MIB)
        for at in (MIB, 11 * MIB):
            file.seek(at)
            file.write(os.urandom(300_001))
    os.link(tree / "d3/f251", tree / "zz-link")
    (tree / "to").symlink_to("nowhere")
    made(tree, "whole.tar")
    return tree


@pytest.fixture
def tree(first: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-a", first, tmp_path / "tree"], check=True)
    return tmp_path / "tree"


@pytest.fixture
def whole(first: Path) -> Path:
    """Return the archive that a single run creates from the original tree."""
    return first.parent / "whole.tar"


@pytest.mark.parametrize(("ranks", "calls", "then"), [(1, 20, 3), (3, 4, 3), (3, 6, 1)])
def test_resume_completes_a_killed_archive(ranks: int, calls: int, then: int, tree: Path, whole: Path) -> None:
    interrupt(tree, ranks=ranks, calls=calls)
    summary = go_on(tree, ranks=then)
    assert summary["pieces_resumed"] is not None  # it may be 0 if only parts of large files were recorded
    assert (summary["found"], summary["failed"]) == (FILES + 20, 0)
    assert_same(whole, tree.parent / "a.tar")


@pytest.mark.parametrize(("call", "calls", "name", "most"), [("fsync", 20, '"f', 700), ("copy_file_range", 6, '"l', 2)])
def test_resume_does_not_read_archived_files_again(
    call: str, calls: int, name: str, most: int, tree: Path, whole: Path
) -> None:
    if call == "fsync":  # without large files, all records are about small files
        for large in (*tree.glob("large*"), tree / "sparse"):
            large.unlink()
        whole = made(tree, "whole.tar")
    interrupt(tree, ranks=1, calls=calls, call=call)
    log = tree.parent / "log"
    go_on(tree, ranks=1, wrap=[*STRACE, "-o", str(log), "-e", "trace=openat"])
    assert_same(whole, tree.parent / "a.tar")
    assert 0 < sum(name in line for line in log.read_text().splitlines()) <= most


def test_signature_is_correct_after_a_resume(tree: Path) -> None:
    one, other = tree.parent / "one.sig", tree.parent / "other.sig"
    whole = made(tree, "whole.tar", "--signature", one)
    interrupt(tree, "--signature", other, ranks=3, calls=4)
    summary = go_on(tree, "--signature", other, ranks=3)
    assert summary["pieces_resumed"] is not None
    assert_same(whole, tree.parent / "a.tar")
    lines = zip(one.read_text().splitlines(), other.read_text().splitlines(), strict=True)
    assert all(line == same or line.startswith("created:") for line, same in lines)
    place = tree.parent / "place"
    place.mkdir()
    subprocess.run(["tar", "-xpf", tree.parent / "a.tar"], cwd=place, check=True)
    assert pverify(other, place / "tree").returncode == 0


def test_signature_requested_only_on_resume_is_correct(tree: Path) -> None:
    interrupt(tree, ranks=1, calls=20)
    go_on(tree, "--signature", tree.parent / "a.sig", ranks=2)
    assert pverify(tree.parent / "a.sig", tree).returncode == 0


def grown(tree: Path) -> None:
    (tree / "d8/f600").write_bytes(b"longer" * 1000)


def rewritten(tree: Path) -> None:
    """Change contents without changing sizes and times."""
    for name in ("d0/f20", "large1", "d10/f800"):
        status = (tree / name).stat()
        with open(tree / name, "r+b") as file:
            file.write(b"x" * 100)
        os.utime(tree / name, ns=(status.st_atime_ns, status.st_mtime_ns))


def shrunk(tree: Path) -> None:
    shutil.rmtree(tree / "d0")
    (tree / "large2").unlink()
    (tree / "large0").write_bytes(b"small")


@pytest.mark.parametrize("change", [grown, rewritten, shrunk])
def test_resume_archives_changed_files_again(change: Callable[[Path], None], tree: Path) -> None:
    interrupt(tree, ranks=2, calls=5)
    change(tree)
    whole = made(tree, "whole.tar")
    go_on(tree, ranks=2)
    assert_same(whole, tree.parent / "a.tar")
    subprocess.run(["tar", "-df", tree.parent / "a.tar"], cwd=tree.parent, check=True)
    subprocess.run(["bsdtar", "-tf", tree.parent / "a.tar"], check=True, stdout=subprocess.DEVNULL)


def test_records_overwritten_by_a_second_run_are_not_used(tree: Path, whole: Path) -> None:
    """Records of the first run are invalid where the second run has overwritten the archive."""
    interrupt(tree, ranks=1, calls=20)
    os.rename(tree / "d0", tree.parent / "d0")
    interrupt(tree, ranks=2, calls=4)
    os.rename(tree.parent / "d0", tree / "d0")
    now = made(tree, "now.tar")
    go_on(tree, ranks=2)
    assert_same(now, tree.parent / "a.tar")
    assert now.stat().st_size == whole.stat().st_size


def test_file_that_becomes_unreadable_is_archived_as_zeros(tree: Path) -> None:
    """The interrupted run archived half of one large file: each takes two calls."""
    interrupt(tree, ranks=1, calls=2, call="copy_file_range")
    wrap = ["strace", "-f", "-qq", "-o", "/dev/null"]
    wrap += [word for number in range(3) for word in ("-P", str(tree / f"large{number}"))]
    wrap += ["-e", "inject=copy_file_range,pread64,preadv,preadv2:error=EIO"]
    done = ptar("-c", "-q", "-f", tree.parent / "whole.tar", "-C", tree.parent, "tree", ranks=1, wrap=wrap)
    assert done.returncode == 1, show(done)
    done = ptar("-c", "-q", "--resume", "-f", tree.parent / "a.tar", "-C", tree.parent, "tree", ranks=1, wrap=wrap)
    assert done.returncode == 1, show(done)
    assert b"large1" in done.stderr
    assert_same(tree.parent / "whole.tar", tree.parent / "a.tar")


@pytest.mark.parametrize("keeps", [True, False])
def test_signal_keeps_the_partial_archive_only_with_resume(keeps: bool, tree: Path, whole: Path) -> None:
    words: list[Argument] = [
        "-c",
        "-q",
        *(["--resume"] if keeps else []),
        "-f",
        tree.parent / "a.tar",
        "-C",
        tree.parent,
        "tree",
    ]
    with held(tree.parent / "log", *words, program="ptar", ranks=1, calls=("pwrite64", "pwritev2"), when="8") as run:
        run.run.send_signal(signal.SIGTERM)
        done = run.go_on()
    assert done.returncode == 75, show(done)
    assert bool(left(tree.parent)) == keeps
    assert (b"to continue with" in done.stdout) == keeps
    if keeps:
        assert go_on(tree, ranks=2)["pieces_resumed"] is not None
        assert_same(whole, tree.parent / "a.tar")


def test_without_resume_the_archive_starts_over(tree: Path, whole: Path) -> None:
    interrupt(tree, ranks=1, calls=20)
    done = ptar("-c", "-f", tree.parent / "a.tar", "-C", tree.parent, "tree", ranks=2)
    assert (done.returncode, left(tree.parent)) == (0, []), show(done)
    assert b"which an interrupted run has left, is not used: with --resume ptar would" in done.stderr
    assert_same(whole, tree.parent / "a.tar")


def test_archive_with_its_final_mode_starts_over_without_resume(tree: Path, whole: Path) -> None:
    """A run that is killed right before the archive gets its name leaves a file with the mode of the archive."""
    interrupt(tree, ranks=1, calls=1, call="renameat")
    (name,) = [name for name in left(tree.parent) if name.endswith(".archive")]
    assert stat.S_IMODE(os.stat(tree.parent / name).st_mode) != 0o600
    done = ptar("-c", "-q", "-f", tree.parent / "a.tar", "-C", tree.parent, "tree", ranks=2)
    assert (done.returncode, done.stderr, left(tree.parent)) == (0, b"", []), show(done)
    assert_same(whole, tree.parent / "a.tar")


@pytest.mark.parametrize("letter", ["", "--zstd", "--gzip"])
@pytest.mark.parametrize("call", ["fchmod", "renameat"])
def test_resume_of_a_complete_archive_only_renames_it(call: str, letter: str, tree: Path) -> None:
    """The records are removed after the archive has its name, so the resumed run reads no file."""
    more = [letter] if letter else []
    whole = made(tree, "whole.tar", *more)
    interrupt(tree, *more, ranks=1, calls=1, call=call)
    (name,) = [name for name in left(tree.parent) if name.endswith(".archive")]
    inode, log = os.stat(tree.parent / name).st_ino, tree.parent / "log"
    go_on(tree, *more, ranks=1, wrap=[*STRACE, "-o", str(log), "-e", "trace=openat,pwrite64,pwritev,copy_file_range"])
    status = os.stat(tree.parent / "a.tar")
    assert (status.st_ino, stat.S_IMODE(status.st_mode)) == (inode, stat.S_IMODE(os.stat(whole).st_mode))
    assert_same(whole, tree.parent / "a.tar")
    calls = log.read_text().splitlines()
    assert [line for line in calls if re.search(r'openat\(\d+, "(f\d|large)', line)] == []
    assert not any("copy_file_range" in line for line in calls)


@pytest.mark.parametrize("call", ["fsync", "renameat", "unlinkat", "fchmod", "ftruncate"])
def test_resume_completes_an_archive_that_was_killed_at_any_call(call: str, tmp_path: Path) -> None:
    """The first run, and each resumed one, is killed at its next ``call``; each archive is the same as that of a whole
    run.
    """
    require_strace()
    tree = tmp_path / "tree"
    for number in range(3):
        (tree / f"d{number}").mkdir(parents=True)
        (tree / f"d{number}/f").write_bytes(noise(70_000 + number))
    whole, archive, number = made(tree, "whole.tar"), tree.parent / "a.tar", 0
    words: list[Argument] = ["-c", "-q", *SOON, "-f", archive, "-C", tmp_path, "tree"]
    while True:
        number += 1
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"]
        if ptar(*words, ranks=1, wrap=[*STRACE, "-o", "/dev/null", *inject]).returncode == 0:
            break
        is_complete = archive.exists()
        assert not is_complete or same_contents(whole, archive)
        again = ptar(*words, ranks=1, wrap=[*STRACE, "-o", "/dev/null", *inject])
        assert again.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL, 75), show(again)
        go_on(tree, ranks=1)
        assert_same(whole, archive)
        archive.unlink()
    assert number > 1 and left(tmp_path) == []
    assert_same(whole, archive)


@pytest.mark.parametrize("damage", [damaged, replaced, truncated])
def test_invalid_records_are_ignored_on_resume(damage: Callable[[Path], None], tree: Path, whole: Path) -> None:
    interrupt(tree, ranks=2, calls=5)
    damage(tree.parent)
    go_on(tree, ranks=2)
    assert_same(whole, tree.parent / "a.tar")


def test_second_run_on_the_same_archive_is_refused(tree: Path) -> None:
    words: list[Argument] = ["-c", "-q", *SOON, "-f", tree.parent / "a.tar", "-C", tree.parent, "tree"]
    with held(tree.parent / "log", *words, program="ptar", ranks=1, calls=("fsync",), when="4") as run:
        done = ptar(*words, ranks=1)
        assert done.returncode == 2, show(done)
        assert b"another ptar is creating this archive" in done.stderr
        run.run.kill_all()
        assert wait_until(lambda: not run.run.processes())
    assert go_on(tree, ranks=2)["pieces_resumed"] is not None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-x",), b"--resume can only be given with -c"),
        (("-t",), b"--resume can only be given with -c"),
        (("-c", "--no-sync"), b"leave out --no-sync"),
    ],
)
def test_refusals(words: Sequence[str], why: bytes, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    done = ptar(*words, "--resume", "-f", tmp_path / "a.tar", "-C", tmp_path, "tree", ranks=1)
    assert done.returncode == 2, show(done)
    assert why in done.stderr
    assert os.listdir(tmp_path) == ["tree"]


def test_foreign_item_with_the_temporary_name_is_kept(tree: Path) -> None:
    interrupt(tree, ranks=1, calls=3)
    (name,) = [name for name in left(tree.parent) if name.endswith(".archive")]
    os.unlink(tree.parent / name)
    os.symlink("/dev/null", tree.parent / name)
    done = ptar("-c", "--resume", "-f", tree.parent / "a.tar", "-C", tree.parent, "tree", ranks=1)
    assert done.returncode == 2, show(done)
    assert b"another item has the temporary name" in done.stderr
    assert os.readlink(tree.parent / name) == "/dev/null"


HASTY = '[ "$PMI_RANK" = 0 ] || export LD_PRELOAD=%s; exec "$@"'


def test_records_written_by_only_one_rank_are_removed(tree: Path, whole: Path) -> None:
    """The checkpoint interval of the other rank has not passed when the archive is complete."""
    require_strace()
    pytest.importorskip("mpi4py")
    script = HASTY % compiled(SUPPORT / "hasty.c", "-shared", "-fPIC")
    trace = ["strace", "-ff", "-qq", "-o", str(tree.parent / "log"), "-e", "trace=openat"]
    wrap = [HYDRA, "-n", "2", "sh", "-c", script, "sh", *trace]
    words = ("--checkpoint-interval", "60", "-f", tree.parent / "a.tar", "-C", tree.parent, "tree")
    for _ in range(5):  # on a busy machine, the first rank may have written all pieces when the other one begins
        for log in tree.parent.glob("log.*"):
            log.unlink()
        done = ptar("-c", "-q", *words, wrap=wrap)
        assert done.returncode == 0, show(done)
        opened = "".join(log.read_text() for log in tree.parent.glob("log.*"))
        if ".made" in opened:
            break
    assert {*re.findall(r'"[^"]*-1-(\d)\.made", [^)]*O_CREAT', opened)} == {"1"}
    assert left(tree.parent) == []
    assert_same(whole, tree.parent / "a.tar")
