"""``ptar -t --signature`` with several ranks prints the same listing and computes the same signature as one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.archives import MIB, ptar
from tests.support.command import pverify, show
from tests.support.held import held


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree with more members than a rank reads in one batch, and with files that are read in parts."""
    tree = tmp_path_factory.mktemp("ranks") / "tree"
    for number in range(1500):
        directory = tree / f"d{number % 11}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}").write_bytes(os.urandom(number * 3))
    (tree / "large").write_bytes(os.urandom(41 * MIB + 17))
    (tree / "middle").write_bytes(os.urandom(3 * MIB))
    with open(tree / "sparse", "wb") as file:
        for at in range(0, 90 * MIB, 9 * MIB):
            file.seek(at)
            file.write(os.urandom(MIB))
        file.truncate(100 * MIB + 3)
    os.link(tree / "large", tree / "d3/hard")
    os.link(tree / "d4/f4", tree / "zz")
    return tree


@pytest.fixture(scope="module")
def archives(tree: Path) -> dict[str, Path]:
    place = tree.parent
    subprocess.run(["tar", "-S", "--format=posix", "-cf", "tar", "tree"], cwd=place, check=True)
    subprocess.run(["gzip", "-1", "-k", "-S", ".one", "tar"], cwd=place, check=True)
    for name, words in (("ptar", []), ("zstd", ["--zstd"]), ("gzip", ["--gzip"])):
        done = ptar("-c", "-q", *words, "-f", place / name, "-C", place, "tree", ranks=2)
        assert done.returncode == 0, show(done)
    return {name: place / name for name in ("tar", "tar.one", "ptar", "zstd", "gzip")}


def comparable_lines(signature: Path) -> list[str]:
    return [line for line in signature.read_text().splitlines() if not line.startswith(("source:", "created:"))]


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", ["tar", "tar.one", "ptar", "zstd", "gzip"])
def test_signature_by_several_ranks_equals_that_of_the_tree(
    name: str, ranks: int, tree: Path, archives: dict[str, Path], tmp_path: Path
) -> None:
    done = ptar("-t", "-v", "-f", archives[name], "--signature", tmp_path / "found", ranks=ranks)
    assert done.returncode == 0, show(done)
    assert pverify(tmp_path / "found", tree).returncode == 0
    assert done.stdout == ptar("-tvf", archives[name]).stdout
    if not (tree.parent / "tree.sig").exists():
        assert pverify("--create", tree.parent / "tree.sig", tree).returncode == 0
    assert comparable_lines(tmp_path / "found") == comparable_lines(tree.parent / "tree.sig")


def test_run_under_a_launcher_succeeds(tree: Path, archives: dict[str, Path], tmp_path: Path) -> None:
    words = ("-t", "-f", archives["zstd"], "--signature", tmp_path / "found", "--json", "tree/large", "tree/d3")
    done = ptar(*words, launcher="mpi", ranks=3)
    assert done.returncode == 0, show(done)
    assert done.stdout == ptar("-t", "--json", "-f", archives["zstd"], "tree/large", "tree/d3").stdout
    assert pverify(tmp_path / "found", tree).returncode == 1  # the tree has more items


@pytest.mark.parametrize("name", ["tar", "ptar", "zstd"])
def test_damage_is_reported_by_several_ranks(name: str, tree: Path, archives: dict[str, Path], tmp_path: Path) -> None:
    """A byte is flipped in a header, and one in a large file, where only a digest or a frame detects it."""
    data = bytearray(archives[name].read_bytes())
    if name == "zstd":
        data[len(data) // 2] ^= 255
    else:
        data[data.index(b"tree/d5/f5\0") + 1] ^= 1
        data[data.index((tree / "large").read_bytes()[20 * MIB : 20 * MIB + 64])] ^= 1
    (tmp_path / "a").write_bytes(data)
    words = ("--signature", tmp_path / "found", "--report", tmp_path / "report.json")
    done = ptar("-t", "-f", tmp_path / "a", *words, ranks=3)
    listed = ptar("-t", "-f", tmp_path / "a")
    assert (done.returncode, b"no signature is written" in done.stderr) == (1, True), show(done)
    assert not (tmp_path / "found").exists()
    assert done.stdout == listed.stdout
    report = json.loads((tmp_path / "report.json").read_text())["totals"]
    wrong = (
        sum(line.startswith(b"ptar: ") for line in done.stderr.splitlines()) - 1
    )  # the last line says that no signature is written
    assert report["failed"] == wrong > 0
    assert report["found"] == report["files"] + report["failed"]
    if name == "zstd":
        assert b"decompress: " in done.stderr
    else:
        assert done.stderr.startswith(listed.stderr) and b"its checksum is wrong" in listed.stderr


def test_flipped_contents_give_another_signature(tree: Path, archives: dict[str, Path], tmp_path: Path) -> None:
    """The flipped byte is in the last part of the large file."""
    data = bytearray(archives["tar"].read_bytes())
    data[data.index((tree / "large").read_bytes()[40 * MIB : 40 * MIB + 64])] ^= 1
    (tmp_path / "a").write_bytes(data)
    assert ptar("-tqf", tmp_path / "a", "--signature", tmp_path / "found", ranks=3).returncode == 0
    assert pverify(tmp_path / "found", tree).returncode == 1


def test_truncated_archive_or_missing_member_gives_no_signature(archives: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(archives["tar"].read_bytes()[: 30 * MIB])
    for words, why in (((), b"ends here"), (("tree/none",), b"has no members with these names: tree/none")):
        done = ptar("-tqf", tmp_path / "a", "--signature", tmp_path / "found", *words, ranks=2)
        assert (done.returncode, why in done.stderr) == (1, True), show(done)
        assert not (tmp_path / "found").exists()


@pytest.mark.parametrize(("letter", "ranks"), [("", 1), ("", 2), ("z", 1)])
def test_bandwidth_limit_holds_for_small_members(letter: str, ranks: int, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(60):
        (tmp_path / "tree" / f"{number}").write_bytes(os.urandom(50_000))
    subprocess.run(["tar", f"-c{letter}f", tmp_path / "a", "-C", tmp_path, "tree"], check=True)
    began = time.monotonic()
    done = ptar("-tqf", tmp_path / "a", "--signature", tmp_path / "found", "--bwlimit", "1M", ranks=ranks)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), show(done)
    assert time.monotonic() - began > 2  # 3 MB; each rank may read the bytes of a tenth of a second without delay
    assert pverify(tmp_path / "found", tmp_path / "tree").returncode == 0


def test_signal_leaves_no_signature_of_an_archive(archives: dict[str, Path], tmp_path: Path) -> None:
    words = ("-tq", "-f", archives["ptar"], "--signature", tmp_path / "found")
    with held(tmp_path / "log", *words, calls=("pread64",), when="6", program="ptar", ranks=2) as run:
        run.run.send_signal(signal.SIGTERM)
        done = run.go_on()
    assert (done.returncode, b"no signature is written" in done.stderr) == (75, True), show(done)
    assert not (tmp_path / "found").exists()
