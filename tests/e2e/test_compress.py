"""``--compress`` and ``--decompress``: the files are compatible with zstd(1) in both directions."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.chaos.unfinished import stopped
from tests.support.command import Argument, Completed, pcopy, pverify, show, succeed, summary
from tests.support.faults import Fault, slowed
from tests.support.files import write
from tests.support.filesystems import mounted
from tests.support.oracle import changes, differences, snapshot
from tests.support.processes import background, wait_for_temporary
from tests.support.walk import temporaries

MIB = 1 << 20
SMALL_PARTS = ("--chunk-size", "1M", "--block-size", "64K")
"""Options that split files above 4 MiB into chunks."""


def half_compressible(size: int) -> bytes:
    """Return data of which one half can be compressed."""
    random = Random(size)
    return b"".join(random.randbytes(100_000) + b"again and again " * 6250 for _ in range(size // 200_000 + 1))[:size]


@pytest.fixture
def source(area: Path) -> Path:
    source = area / "source"
    write(source / "text", b"text " * 1000)
    write(source / "empty", b"")
    write(source / "deep/er/large", half_compressible(7 * MIB + 123))
    write(source / "middling", half_compressible(5 * MIB))
    write(source / "already.zst", compressed_by_zstd(b"already " * 1000))
    with open(source / "sparse", "wb") as file:
        file.truncate(9 * MIB)
        file.seek(6 * MIB + 5)
        file.write(b"island")
    (source / "link").symlink_to("text")
    os.mkfifo(source / "fifo")
    (source / "text").chmod(0o640)
    os.setxattr(source / "deep/er/large", "user.what", b"this")
    return source


def compressed_by_zstd(data: bytes, *options: str) -> bytes:
    return subprocess.run(["zstd", "-c", *options], input=data, check=True, capture_output=True).stdout


def decompressed_by_zstd(path: Path) -> bytes:
    """Test a file with zstd(1), and return its decompressed content."""
    subprocess.run(["zstd", "-tq", path], check=True)
    return subprocess.run(["zstd", "-dcq", path], check=True, capture_output=True).stdout


def compress(*arguments: Argument, **options: int) -> Completed:
    return succeed("--compress", "zstd", *SMALL_PARTS, *arguments, **options)


def decompress(*arguments: Argument, **options: int) -> Completed:
    return succeed("--decompress", *SMALL_PARTS, *arguments, **options)


@pytest.mark.parametrize("ranks", [1, 2])
def test_compressed_tree_decompresses_to_the_original(area: Path, source: Path, ranks: int) -> None:
    before = snapshot(source)
    reported = summary(compress("--json", source, area / "packed", ranks=ranks))
    assert changes(before, snapshot(source)) == []
    sizes = sum(path.lstat().st_size for path in source.rglob("*") if path.is_file() and not path.is_symlink())
    assert (reported["files"], reported["bytes"], reported["failed"], reported["warnings"]) == (6, sizes, 0, 0)
    for path in source.rglob("*"):
        copy = area / "packed" / path.relative_to(source)
        if path.is_file() and not path.is_symlink() and path.suffix != ".zst":
            copy = copy.with_name(copy.name + ".zst")
            assert decompressed_by_zstd(copy) == path.read_bytes(), copy
            one, other = path.stat(), copy.stat()
            assert (one.st_mode, one.st_mtime_ns, one.st_uid) == (other.st_mode, other.st_mtime_ns, other.st_uid)
            assert os.listxattr(path) == os.listxattr(copy)
        else:
            assert differences(path, copy) == [] or path.is_dir()
    assert len(list((area / "packed").rglob("*"))) == len(list(source.rglob("*")))
    listed = subprocess.run(["zstd", "-lv", area / "packed/deep/er/large.zst"], check=True, capture_output=True).stdout
    assert b"# Zstandard Frames: %d\n" % (2 if ranks == 1 else 8) in listed, listed
    assert b"# Skippable Frames: 1\n" in listed

    for tree in (area / "packed", source):
        (tree / "already.zst").unlink()
        os.utime(tree, (10**9, 10**9))  # Otherwise they would differ if the clock has advanced in between.
    decompress(area / "packed", area / "back", ranks=ranks)
    assert differences(source, area / "back") == []
    assert (area / "back/sparse").stat().st_blocks * 512 < MIB
    decompress("--no-preserve", "sparse", area / "packed/sparse.zst", area / "filled", ranks=ranks)
    assert (area / "filled").read_bytes() == (source / "sparse").read_bytes()
    assert (area / "filled").stat().st_blocks * 512 >= 9 * MIB


def test_files_written_by_zstd_are_decompressed(area: Path) -> None:
    """Such files have no seek table. The file ``.zst`` has no name without the suffix."""
    data = half_compressible(6 * MIB)
    write(area / "source/one.zst", compressed_by_zstd(data))
    write(area / "source/frames.zst", compressed_by_zstd(data) + compressed_by_zstd(b"and more", "--no-check"))
    write(area / "source/fast.zst", compressed_by_zstd(data, "-T2", "-B1M", "--fast=3"))
    write(area / "source/.zst", b"has no other name")
    write(area / "source/plain", b"plain")
    decompress(area / "source", area / "copy", ranks=2)
    assert {path.name for path in (area / "copy").iterdir()} == {"one", "frames", "fast", ".zst", "plain"}
    assert (area / "copy/one").read_bytes() == (area / "copy/fast").read_bytes() == data
    assert (area / "copy/frames").read_bytes() == data + b"and more"
    assert (area / "copy/.zst").read_bytes() == b"has no other name"


def test_damaged_compressed_files_fail_and_leave_nothing_in_the_target(area: Path, source: Path) -> None:
    compress(source, area / "packed", ranks=2)
    whole = {path: path.read_bytes() for path in (area / "packed").rglob("*.zst")}
    (area / "packed/deep/er/large.zst").write_bytes(whole[area / "packed/deep/er/large.zst"][:-100])
    flipped = bytearray(whole[area / "packed/sparse.zst"])
    flipped[len(flipped) // 2] ^= 1
    (area / "packed/sparse.zst").write_bytes(flipped)
    (area / "packed/text.zst").write_bytes(b"no zstd at all, though its name says so")
    cut_table = whole[area / "packed/middling.zst"][:-9]
    (area / "packed/middling.zst").write_bytes(cut_table)
    write(area / "back/packed/sparse", b"old")
    run = pcopy("--decompress", *SMALL_PARTS, "--json", area / "packed", area / "back", ranks=2)
    assert run.returncode == 1, show(run)
    assert summary(run)["failed"] == 4, show(run)
    for name in (b"large.zst", b"sparse.zst", b"text.zst", b"middling.zst"):
        assert name in run.stderr
    left = {path.name for path in (area / "back").rglob("*") if path.is_file()}
    assert left == {"already", "empty", "sparse"}
    assert (area / "back/packed/sparse").read_bytes() == b"old"
    assert temporaries(os.fsencode(area / "back")) == []


@pytest.mark.parametrize("option", [("--compress", "zstd"), ("--decompress",)])
def test_second_item_with_the_same_target_name_fails(area: Path, option: tuple[str, ...]) -> None:
    """The item that is copied unchanged gets the name; the other one fails and replaces nothing, in any order."""
    write(area / "source/file", b"plain")
    write(area / "source/file.zst", compressed_by_zstd(b"packed"))
    write(area / "source/directory", b"plain")
    (area / "source/directory.zst").mkdir()
    run = pcopy(*option, "--json", area / "source", area / "copy", ranks=2)
    assert run.returncode == 1, show(run)
    kept = "file.zst" if option[0] == "--compress" else "file"
    assert (area / "copy" / kept).read_bytes() == (area / "source" / kept).read_bytes()
    assert b"is that of another item of the source" in run.stderr
    assert summary(run)["failed"] == (2 if option[0] == "--compress" else 1)
    assert (area / "copy/directory.zst").is_dir()
    assert not list((area / "copy").rglob("*.zst.zst"))
    succeed("--compress", "zstd", "--exclude", "*.zst", f"{area}/source/", area / "others")
    assert decompressed_by_zstd(area / "others/file.zst") == b"plain"


@pytest.mark.parametrize("ranks", [1, 2])
def test_excluded_or_unlisted_item_causes_no_name_conflict(area: Path, ranks: int) -> None:
    """The item is excluded by a filter, or neither it nor one of its parents is in the list."""
    for name in ("a", "d/a", "d/e/b"):
        write(area / "source" / name, b"plain" * 1000)
        write(area / "source" / f"{name}.zst", compressed_by_zstd(b""))
        write(area / "source" / f"{name}-other", b"")
    os.utime(area / "source/a.zst", (1, 1))
    words: list[Argument] = ["--compress", "zstd", "--json"]
    for number, filters in enumerate([("--larger-than", "1K"), ("--smaller-than", "1M", "--exclude", "a.zst")]):
        run = pcopy(*words, *filters, area / "source/", area / f"copy{number}", ranks=ranks)
        assert (run.returncode, summary(run)["failed"]) == ((0, 0) if number == 0 else (1, 1)), show(run)
    assert decompressed_by_zstd(area / "copy0/d/e/b.zst") == b"plain" * 1000
    (area / "list").write_bytes(b"a\nd/a\nd/a-other\nd/a.zst\nd/e\n")
    run = pcopy(*words, "--files-from", area / "list", area / "source/", area / "listed", ranks=ranks)
    assert (run.returncode, summary(run)["failed"]) == (1, 2), show(run)
    assert decompressed_by_zstd(area / "listed/a.zst") == b"plain" * 1000
    for name in ("d/a.zst", "d/e/b.zst"):
        assert (area / "listed" / name).read_bytes() == (area / "source" / name).read_bytes()


def test_name_too_long_with_the_suffix_fails(area: Path) -> None:
    """The message shows the name in the target."""
    write(area / "source" / ("n" * 252), b"long")
    write(area / "source" / ("m" * 251), b"long enough")
    run = pcopy("--compress", "zstd", area / "source/", area / "copy")
    assert run.returncode == 1, show(run)
    assert b"too long" in run.stderr and b"n.zst" in run.stderr
    assert [path.name for path in (area / "copy").iterdir()] == ["m" * 251 + ".zst"]


def test_file_is_compressed_into_its_own_directory(area: Path) -> None:
    """Source and target have different names; a target that is a hard link to the source is refused."""
    write(area / "text", b"text")
    compress(area / "text", area, ranks=1)
    compress(area / "text", area / "text", ranks=1)
    assert decompressed_by_zstd(area / "text.zst") == (area / "text").read_bytes() == b"text"
    (area / "text").unlink()
    decompress(area / "text.zst", area, ranks=1)
    assert (area / "text").read_bytes() == b"text"
    os.link(area / "text", area / "other.zst")
    run = pcopy("--compress", "zstd", area / "text", area / "other")
    assert (run.returncode, b"the same file" in run.stderr) == (2, True), show(run)


def test_suffix_is_added_to_or_removed_from_a_given_name(area: Path, source: Path) -> None:
    compress(source / "text", area / "named", ranks=1)
    compress(source / "text", area / "other.zst", ranks=1)
    (area / "into").mkdir()
    run = compress(source / "text", source / "already.zst", area / "into", ranks=1)
    assert {path.name for path in (area / "into").iterdir()} == {"text.zst", "already.zst"}, show(run)
    assert (
        decompressed_by_zstd(area / "named.zst")
        == decompressed_by_zstd(area / "other.zst")
        == (source / "text").read_bytes()
    )
    run = decompress(area / "named.zst", area / "plain", ranks=1)
    assert differences(source / "text", area / "plain") == []
    decompress(area / "other.zst", area / "into", ranks=1)
    assert differences(source / "text", area / "into/other") == []
    write(area / "both/text.zst", compressed_by_zstd(b"another"))
    run = pcopy("--compress", "zstd", source / "text", area / "both/text.zst", area / "into")
    assert run.returncode == 1, show(run)
    assert decompressed_by_zstd(area / "into/text.zst") == b"another"


def test_second_compressing_run_copies_only_changed_files(area: Path, source: Path) -> None:
    words = ("--existing", "changed", "--json", f"{source}/", area / "packed")
    first = summary(compress(*words, ranks=2))
    before = snapshot(area / "packed")
    reported = summary(compress(*words, ranks=2))
    assert (reported["files"], reported["skipped"]) == (0, first["files"] + 2 + first["directories"])
    assert changes(before, snapshot(area / "packed")) == []

    (source / "text").chmod(0o600)  # metadata alone
    write(source / "middling", half_compressible(5 * MIB) + b"x")  # its size, at the same time
    (source / "empty").touch()  # its time
    reported = summary(compress(*words, ranks=2))
    assert reported["files"] == 2
    assert (area / "packed/text.zst").stat().st_mode == (source / "text").stat().st_mode
    assert decompressed_by_zstd(area / "packed/middling.zst") == (source / "middling").read_bytes()

    back = ("--existing", "changed", "--json", f"{area}/packed/", area / "back")
    decompress(*back, ranks=2)
    assert summary(decompress(*back, ranks=2))["files"] == 0
    write(area / "back/text", b"cut")
    assert summary(decompress(*back, ranks=2))["files"] == 1
    assert (area / "back/text").read_bytes() == (source / "text").read_bytes()


def test_signature_of_compressing_copy_matches_the_decompressed_copy(area: Path, source: Path) -> None:
    compress("--signature", area / "s", "--hash", "blake3", source, area / "packed", ranks=2)
    assert pverify(area / "s", source).returncode == 0
    (area / "packed/already.zst").rename(area / "apart")
    decompress(area / "packed", area / "back", ranks=2)
    (area / "apart").rename(area / "back/already.zst")
    run = pverify(area / "s", area / "back")
    assert run.returncode == 0, show(run)


def test_dry_run_prints_names_of_compressed_files(area: Path, source: Path) -> None:
    run = succeed("--compress", "zstd:19", "--dry-run", source, area / "packed")
    assert b"large.zst\n" in run.stdout
    assert b"source/already.zst\n" in run.stdout
    assert b"text\n" not in run.stdout.replace(b"link", b"")
    assert not (area / "packed").exists()


def test_hard_links_become_separate_compressed_files(area: Path) -> None:
    """One name of the group may have the suffix already, and another one not."""
    write(area / "source/a", b"contents")
    os.link(area / "source/a", area / "source/b.zst")
    os.link(area / "source/a", area / "source/c")
    run = succeed("--compress", "zstd", area / "source", area / "packed")
    assert b"each of its names becomes a separate file" in run.stderr
    assert decompressed_by_zstd(area / "packed/a.zst") == decompressed_by_zstd(area / "packed/c.zst") == b"contents"
    assert (area / "packed/b.zst").read_bytes() == b"contents"


def test_symlink_at_a_compressed_name_is_replaced_and_full_directory_fails(area: Path) -> None:
    write(area / "source/link", b"new")
    write(area / "source/directory", b"new")
    write(area / "outside", b"old")
    write(area / "copy/directory.zst/file", b"old")
    (area / "copy/link.zst").symlink_to(area / "outside")
    run = pcopy("--compress", "zstd", f"{area}/source/", area / "copy")
    assert run.returncode == 1, show(run)
    assert (area / "outside").read_bytes() == b"old"
    assert decompressed_by_zstd(area / "copy/link.zst") == b"new"
    assert (area / "copy/directory.zst/file").read_bytes() == b"old"
    assert temporaries(os.fsencode(area / "copy")) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_resumed_job_restarts_the_interrupted_compressed_file(area: Path, number: int) -> None:
    env = {"XDG_STATE_HOME": str(area / "state")}
    write(area / "source/large", half_compressible(20 * MIB))
    for each in range(20):
        write(area / f"source/{each}", b"%d" % each)
    words: list[Argument] = ["--compress", "zstd", *SMALL_PARTS, area / "source", area / "packed"]

    def begun() -> bool:
        return any(path.stat().st_size > 4 * MIB for path in (area / "packed").glob(".pcopy-*"))

    name = stopped(area, env, *words, ranks=2, number=number, until=begun, slow=("renameat,renameat2,pwrite64", 150))
    assert not (area / "packed/large.zst").exists()
    succeed("--resume", name, env=env, ranks=2)
    for path in (area / "source").iterdir():
        assert decompressed_by_zstd(area / f"packed/{path.name}.zst") == path.read_bytes()
    assert temporaries(os.fsencode(area / "packed")) == []


def test_stopped_job_without_checkpoint_leaves_no_files(area: Path) -> None:
    write(area / "source/large", half_compressible(20 * MIB))
    words = ("--compress", "zstd", *SMALL_PARTS, "--checkpoint", "none", area / "source", area / "packed")
    with background(*words, ranks=2, wrap=slowed("pwrite64", 150)) as run:
        wait_for_temporary(run, os.fsencode(area / "packed"))
        run.send_signal(signal.SIGTERM)
        run.process.communicate(timeout=60)
        assert run.process.returncode == 128 + signal.SIGTERM
    assert [path for path in (area / "packed").rglob("*") if path.is_file()] == []


def test_full_destination_fails_the_compressed_file(area: Path) -> None:
    write(area / "source/large", Random(1).randbytes(8 * MIB))
    with mounted("tmpfs", area, size=4 * MIB) as full:
        run = pcopy("--compress", "zstd", *SMALL_PARTS, area / "source", full / "copy", ranks=2)
        assert run.returncode in (1, 75), show(run)
        assert os.strerror(errno.ENOSPC).encode() in run.stderr
        assert not list(full.rglob("*.zst"))
        if run.returncode == 1:
            assert temporaries(os.fsencode(full)) == []


@pytest.mark.parametrize("call", ["pread64", "pwrite64", "fchmod"])
def test_failing_system_call_is_reported(area: Path, call: str) -> None:
    """The file fails, and is missing in the target; only a failing ``fchmod`` leaves it there, with other metadata."""
    write(area / "source/large", half_compressible(6 * MIB))
    is_read = call == "pread64"  # others than pcopy make this call, too: the loader of programs
    fault = Fault(area / "log", (call,), area / "source/large" if is_read else None, "ENXIO" if is_read else "EIO")
    run = pcopy("--compress", "zstd", *SMALL_PARTS, area / "source", area / "packed", ranks=2, wrap=fault.wrap())
    fault.check()
    assert run.returncode == 1, show(run)
    assert (area / "packed/large.zst").exists() == (call == "fchmod")
    assert temporaries(os.fsencode(area / "packed")) == []


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    # States of a compressed file after a power failure or a stopped program, with an unchanged modification time.
    "empty": lambda data: b"",
    "cut short": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "zeros": lambda data: bytes(len(data)),
    "no table": lambda data: compressed_by_zstd(b"content of " * 1000),
    "extended": lambda data: data + bytes(4096),
    "the table of another file": lambda data: b"x" + data,
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("size", [0, 9000, 40 * MIB], ids=["empty", "small", "large"])
def test_existing_compressed_file_is_skipped_only_with_an_intact_seek_table(
    area: Path, damage: str, size: int, ranks: int
) -> None:
    data = half_compressible(size)
    write(area / "source/file", data)
    words = ("--existing", "changed", "--json", f"{area}/source/", area / "packed")
    compress(*words, ranks=ranks)
    target = area / "packed/file.zst"
    os.utime(target, ns=(0, target.stat().st_mtime_ns))
    whole, times = target.read_bytes(), target.stat()
    write(target, DAMAGES[damage](whole), times.st_mtime_ns)
    reported = summary(compress("--dry-run", *words, ranks=ranks))
    assert (reported["files"], reported["skipped"], reported["directories"]) == (1, 1, 0)
    reported = summary(compress(*words, ranks=ranks))
    assert (reported["files"], reported["skipped"], reported["directories"]) == (1, 1, 0)
    assert decompressed_by_zstd(target) == data
    reported = summary(compress(*words, ranks=ranks))
    assert (reported["files"], reported["skipped"], reported["directories"]) == (0, 2, 0)


@pytest.mark.parametrize("there", ["cut", "another size", "the same second", "as it was"])
@pytest.mark.parametrize("has_table", [True, False], ids=["table", "no table"])
def test_existing_decompressed_file_is_skipped_only_with_the_size_in_the_table(
    area: Path, there: str, has_table: bool
) -> None:
    data = half_compressible(3 * MIB)
    write(area / "plain/file", data)
    compress(f"{area}/plain/", area / "packed")
    if not has_table:
        write(area / "packed/file.zst", compressed_by_zstd(data), (area / "plain/file").stat().st_mtime_ns)
    words = ("--existing", "changed", "--json", f"{area}/packed/", area / "back")
    decompress(*words)
    target = area / "back/file"
    time = target.stat().st_mtime_ns
    if there == "the same second":
        os.utime(target, ns=(time + 1, time + 1))
    elif there != "as it was":
        write(target, data[:-1] if there == "cut" else data + b"x", time)
    reported = summary(decompress(*words))
    assert (reported["files"], reported["skipped"]) == ((0, 2) if there == "as it was" else (1, 1))
    assert target.read_bytes() == data
    assert target.stat().st_mtime_ns == time


def test_existing_file_is_compared_by_content_without_a_seek_table(area: Path) -> None:
    """The existing file consists of zeros, with the right size and time."""
    data = half_compressible(3 * MIB)
    write(area / "packed/file.zst", compressed_by_zstd(data))
    words = ("--existing", "changed", "--json", f"{area}/packed/", area / "back")
    decompress(*words)
    write(area / "back/file", bytes(len(data)), (area / "packed/file.zst").stat().st_mtime_ns)
    assert summary(decompress(*words))["files"] == 1
    assert (area / "back/file").read_bytes() == data
    assert summary(decompress(*words))["files"] == 0
