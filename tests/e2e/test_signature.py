"""``--signature``: the same value for the same source, however it is computed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import reference_signature as reference
from tests.support.command import Argument, pverify, show, succeed, summary
from tests.support.faults import READS
from tests.support.files import noise
from tests.support.filesystems import Place, mounted
from tests.support.held import held
from tests.support.oracle import differences
from tests.support.signatures import VECTORS, expected, signature_file, signed
from tests.support.traces import READING, WRITING, Trace
from tests.support.trees import random_tree
from tests.support.users import is_root

MIB = 1 << 20


def sign(area: Path, *arguments: Argument, ranks: int = 2, launcher: str | None = None) -> str:
    """Return the signature that a copy writes; the summary must contain the same value."""
    file = area / "copied.sig"
    file.unlink(missing_ok=True)
    run = succeed("--json", "--signature", file, *arguments, ranks=ranks, launcher=launcher)
    assert summary(run)["signature"] == signed(file)
    return signed(file)


def created(area: Path, path: Path, *options: Argument, ranks: int = 2, launcher: str | None = None) -> str:
    """Return the signature that ``pverify --create`` writes for ``path``."""
    file = area / "created.sig"
    file.unlink(missing_ok=True)
    run = pverify("-q", "--force", "--create", file, *options, path, ranks=ranks, launcher=launcher)
    assert run.returncode == 0, show(run)
    return signed(file)


@pytest.mark.parametrize("name", VECTORS)
def test_signatures_equal_the_published_values(area: Path, name: str) -> None:
    vector = VECTORS[name]
    vector.make(area / name)
    assert sign(area, area / name, area / "copy") == vector.large
    assert created(area, area / "copy", "--block-size", "64K") == vector.small
    assert sign(area, "--block-size", "64K", "-T", area / name, area / "copy", ranks=1) == vector.small
    assert created(area, area / name) == vector.large


@pytest.fixture(scope="module")
def tree(session_scratch: Path) -> Path:
    path = session_scratch / "signed-tree"
    random_tree(path, 11, files=90, directories=12, privileged=is_root())
    return path


@pytest.mark.parametrize(
    ("block", "chunk", "ranks", "launcher", "other"),
    [
        (64 << 10, "auto", 1, None, 5),
        (64 << 10, "1M", 2, None, 1),
        (256 << 10, "256K", 5, None, 2),
        (4 * MIB, "4M", 3, "mpi", 1),
        (4 * MIB, "5M", 2, None, 5),
    ],
)
def test_signature_does_not_depend_on_how_it_is_computed(
    area: Path, tree: Path, block: int, chunk: str, ranks: int, launcher: str | None, other: int
) -> None:
    options = ("--block-size", str(block))
    value = expected(tree, block)
    assert sign(area, *options, "--chunk-size", chunk, tree, area / "copy", ranks=ranks, launcher=launcher) == value
    assert differences(tree, area / "copy") == []
    assert created(area, area / "copy", *options, ranks=other) == value
    assert created(area, tree, *options, ranks=ranks, launcher=launcher) == value


def test_signature_does_not_depend_on_termination_and_write_mode(area: Path, tree: Path) -> None:
    value = expected(tree)
    assert sign(area, "--termination", "ring", tree, area / "copy", ranks=3) == value
    assert sign(area, "--inplace", "-T", tree, area / "copy", ranks=3) == value
    assert sign(area, "--checksum", "-T", tree, area / "copy", ranks=3) == value


def test_signature_with_blake3_equals_the_reference(area: Path, tree: Path) -> None:
    blake3 = pytest.importorskip("blake3").blake3
    value = reference.signature(os.fsencode(tree), 64 << 10, lambda data: blake3(data).digest()).hex()
    options = ("--hash", "blake3", "--block-size", "64K")
    assert sign(area, *options, "--chunk-size", "1M", tree, area / "copy") == value
    assert signature_file(area / "copied.sig")["algorithm"] == "blake3"
    assert created(area, area / "copy", *options) == value
    assert pverify(area / "copied.sig", tree).returncode == 0


def test_signature_file_has_all_fields(area: Path) -> None:
    VECTORS["outer"].make(area / "data\n")
    os.link(area / "data\n/a.txt", area / "data\n/z.txt")
    sign(area, area / "data\n", area / "copy")
    said = signature_file(area / "copied.sig")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", said.pop("created"))
    assert said.pop("generator").startswith("pcopy ")
    assert said.pop("source").replace("\\\\", "\\") == f"{area}/data\\n"
    assert said == {
        "format": "pcopy-signature", "version": "1", "algorithm": "xxh3-128", "block_size": str(4 * MIB),
        "signature": expected(area / "copy"), "files": "5", "directories": "2", "symlinks": "1", "special": "1",
        "bytes": "200013",
    }  # fmt: skip


def test_several_sources_are_signed_as_one_directory(area: Path) -> None:
    VECTORS["outer"].make(area / "one")
    VECTORS["inner"].make(area / "two")
    VECTORS["hello"].make(area / "three")
    (area / "four").symlink_to("elsewhere")
    (area / "copy").mkdir()
    value = sign(area, *(area / name for name in ("one", "three", "four", "two")), area / "copy", ranks=3)
    assert value == expected(area / "copy") == created(area, area / "copy")
    said = signature_file(area / "copied.sig")
    assert (said["files"], said["directories"], said["symlinks"], said["special"]) == ("7", "4", "2", "1")
    (area / "merged").mkdir()
    value = sign(area, f"{area}/one/", area / "three", area / "two", area / "merged", ranks=3)
    assert value == expected(area / "merged") == created(area, area / "merged")


@pytest.mark.parametrize("kind", ["file", "large", "link", "fifo"])
def test_single_item_is_signed(area: Path, kind: str) -> None:
    path = area / "item"
    if kind == "link":
        path.symlink_to("nowhere")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(noise(10 if kind == "file" else 20 * MIB + 1))
    (area / "into").mkdir()
    for target, name in (("into", "into/item"), ("renamed", "renamed")):
        assert sign(area, "--chunk-size", "4M", path, area / target, ranks=3) == expected(area / name) == expected(path)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (["--existing", "skip"], "other"),
        (["-u"], "other"),
        (["--existing", "changed"], "same"),
        (["--checksum"], "same"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else value,
)
def test_skipped_files_are_signed_from_the_source(area: Path, policy: list[str], kept: str) -> None:
    random_tree(area / "source", 5, files=40, directories=5, largest=9 * MIB)
    subprocess.run(["cp", "-a", area / "source", area / "copy"], check=True)
    if kept == "other":
        for path in (area / "copy").rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.write_bytes(b"something else")
                os.utime(path, (4e9, 4e9))
    value = sign(area, "--chunk-size", "4M", *policy, f"{area}/source/", area / "copy", ranks=3)
    assert value == expected(area / "source")
    assert kept == "other" or created(area, area / "copy") == value


def test_skipped_hard_links_are_signed_from_the_source(area: Path) -> None:
    (area / "source").mkdir()
    for size in (100, 20 * MIB):
        (area / f"source/{size}").write_bytes(os.urandom(size))
        for number in range(3):
            os.link(area / f"source/{size}", area / f"source/{size}-{number}")
    succeed("--chunk-size", "4M", area / "source", area / "copy")
    (area / "copy/100-1").unlink()
    (area / "copy/100-1").write_bytes(b"kept")
    (area / f"copy/{20 * MIB}-2").unlink()
    value = sign(area, "--chunk-size", "4M", "--existing", "skip", f"{area}/source/", area / "copy", ranks=3)
    assert value == expected(area / "source")
    assert (area / "copy/100-1").read_bytes() == b"kept"


@pytest.mark.parametrize(("policy", "stays"), [("replace", False), ("skip", True)])
def test_signature_includes_a_directory_whose_target_is_a_file(area: Path, policy: str, stays: bool) -> None:
    VECTORS["outer"].make(area / "source")
    (area / "copy").mkdir()
    (area / "copy/sub").write_bytes(b"a file")
    value = sign(area, "--existing", policy, f"{area}/source/", area / "copy", ranks=3)
    assert value == VECTORS["outer"].large
    assert (expected(area / "copy") != value) is stays


def test_followed_links_are_signed_as_their_targets(area: Path) -> None:
    VECTORS["outer"].make(area / "outside")
    VECTORS["inner"].make(area / "source")
    (area / "source/there").symlink_to(area / "outside")
    (area / "source/file").symlink_to(area / "outside/a.txt")
    subprocess.run(["cp", "-rL", area / "source", area / "followed"], check=True)
    assert sign(area, "-L", area / "source", area / "copy", ranks=3) == expected(area / "followed")
    assert created(area, area / "copy") == expected(area / "followed")


def test_excluded_mount_points_are_signed_as_empty_directories(area: Path) -> None:
    VECTORS["inner"].make(area / "source")
    with mounted("tmpfs", area / "source", MIB) as point:
        (point / "hidden").write_bytes(b"x")
        value = sign(area, "-x", area / "source", area / "copy")
        assert value == expected(area / "copy") == created(area, area / "copy")
        assert value != created(area, area / "source")


def test_changing_files_are_signed_as_they_were_copied(area: Path) -> None:
    for size in (1000, 20 * MIB):
        source = area / f"source-{size}"
        source.mkdir()
        (source / "file").write_bytes(os.urandom(size))
        arguments = ("--chunk-size", "4M", "--signature", area / "sig", source, area / f"copy-{size}")
        with held(area / f"log-{size}", *arguments, calls=READS, path=source / "file", ranks=2) as run:
            (source / "file").write_bytes(os.urandom(size + 1))
            ended = run.go_on()
        assert ended.returncode == 0, show(ended)
        assert signed(area / "sig") == expected(source) == expected(area / f"copy-{size}")


@pytest.mark.parametrize("ranks", [1, 3])
def test_cloned_file_is_read_once_and_not_written(on: Place, area: Path, ranks: int) -> None:
    xfs = on("xfs")
    (xfs / "file").write_bytes(noise(24 * MIB))
    trace = Trace(area / "trace", "ioctl", *READING, *WRITING)
    options = ("--chunk-size", "4M", "--signature", area / "sig")
    succeed(*options, xfs / "file", xfs / "copy", ranks=ranks, wrap=trace.wrap())
    assert signed(area / "sig") == expected(xfs / "file") == expected(xfs / "copy")
    calls = [line for path in area.glob("trace/*") for line in path.read_text(errors="replace").splitlines()]
    assert any(f"<{xfs}/.pcopy-" in line and "FICLONE" in line and line.endswith(" = 0") for line in calls)
    assert not [line for line in calls if line.startswith(WRITING) and f"<{xfs}/" in line]
    assert trace.moved(xfs / "file", READING) == 24 * MIB


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("ranks", [1, 3])
def test_holes_are_not_read(filesystem: Path, area: Path, ranks: int) -> None:
    with open(filesystem / "sparse", "wb") as file:
        file.truncate(96 * MIB)
        for offset in (5 * MIB, 33 * MIB - 7):
            file.seek(offset)
            file.write(b"island" * 1000)
    trace = Trace(area / "trace", *READING)
    options = ("--chunk-size", "4M", "--signature", area / "sig", filesystem / "sparse", filesystem / "copy")
    succeed(*options, ranks=ranks, wrap=trace.wrap())
    assert 12000 <= trace.moved(filesystem / "sparse", READING) < MIB
    assert signed(area / "sig") == expected(filesystem / "sparse")
    run = pverify(area / "sig", filesystem / "copy", ranks=ranks, wrap=trace.wrap())
    assert run.returncode == 0, show(run)
    assert 12000 <= trace.moved(filesystem / "copy", READING) < MIB


def test_files_without_a_size_are_signed(area: Path) -> None:
    (area / "copy").mkdir()
    value = sign(area, "/proc/version", "/proc/cpuinfo", area / "copy")
    assert value == expected(area / "copy")
    assert (area / "copy/version").read_bytes() == Path("/proc/version").read_bytes()
