"""``ptar -c`` chooses the compression by the name of the archive, unless an option does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.archives import MIB, ptar, small_file_system
from tests.support.command import show
from tests.support.interrupted_archives import assert_same, go_on, interrupt, left, made

MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}
CHOSEN = {
    "tar.gz": "gzip",
    "tgz": "gzip",
    "tar.zst": "zstd",
    "tzst": "zstd",
    "tar": "",
    "tarball": "",
    "tar.gz.old": "",
}
REFUSED = {
    "tar.xz": "xz",
    "txz": "xz",
    "tar.bz2": "bzip2",
    "tbz2": "bzip2",
    "tbz": "bzip2",
    "tar.lz4": "lz4",
    "tar.lz": "lzip",
    "tar.lzma": "lzma",
    "tar.lzo": "lzop",
    "tar.Z": "compress",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/file").write_bytes(b"contents" * 5000)
    return tree


def compression_of(archive: Path) -> str:
    with open(archive, "rb") as file:
        return MAGIC.get(file.read(2), "")


def need_zstd(method: str) -> None:
    if method == "zstd":
        pytest.importorskip("zstandard")


@pytest.mark.parametrize("words", [("-cf",), ("-caf",), ("caf",)])
@pytest.mark.parametrize("suffix", CHOSEN)
def test_suffix_chooses_as_with_tar(suffix: str, words: tuple[str, ...], tree: Path, tmp_path: Path) -> None:
    need_zstd(CHOSEN[suffix])
    archive = tmp_path / f"a.{suffix}"
    run = ptar(*words, archive.name, "tree", cwd=tmp_path)
    assert run.returncode == 0, show(run)
    subprocess.run(["tar", "-caf", f"tar.{suffix}", "tree"], cwd=tmp_path, check=True)
    assert compression_of(archive) == compression_of(tmp_path / f"tar.{suffix}") == CHOSEN[suffix]
    first = run.stderr.decode().partition("\n")[0]
    wanted = f"ptar: a.{suffix}: compressed with {CHOSEN[suffix]}, as the name says"
    assert first.startswith(wanted) if CHOSEN[suffix] else run.stderr == b"", show(run)
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", "out"], cwd=tmp_path, check=True)
    subprocess.run(["diff", "-r", tree, tmp_path / "out/tree"], check=True)


@pytest.mark.parametrize("suffix", REFUSED)
def test_suffixes_of_other_compressors_are_refused(suffix: str, tree: Path, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    run = ptar("-cf", f"a.{suffix}", "tree", cwd=tmp_path)
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    method = REFUSED[suffix]
    wanted = f"ptar: a.{suffix}: ptar does not compress with {method}: name the archive a.tar.zst, or a.tar and run"
    assert run.stderr.decode() == f"{wanted} {method} a.tar afterwards\n"
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("words", [(), ("-a",), ("--resume",), ("--dry-run",)])
@pytest.mark.parametrize("suffix", ["zip", "7z", "rar", "cpio", "jar", "iso", "ZIP", "tar.zip"])
def test_suffixes_of_other_formats_are_refused(suffix: str, words: tuple[str, ...], tree: Path, tmp_path: Path) -> None:
    run = ptar("-c", *words, "-f", f"a.{suffix}", "tree", cwd=tmp_path)
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    wanted = f"ptar: a.{suffix}: ptar writes tar files: name it a.tar, a.tar.gz or a.tar.zst\n"
    assert run.stderr.decode() == wanted
    assert sorted(os.listdir(tmp_path)) == ["tree"]


def test_tar_of_another_suffix_is_read(tree: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-cf", "a.zip", "tree"], cwd=tmp_path, check=True)
    (tmp_path / "out").mkdir()
    run = ptar("-x", "-f", "a.zip", "-C", "out", cwd=tmp_path)
    assert run.returncode == 0, show(run)
    subprocess.run(["diff", "-r", tree, tmp_path / "out/tree"], check=True)


@pytest.mark.parametrize(
    ("words", "name", "method", "named"),
    [
        (("--no-auto-compress",), "a.tar.gz", "", "gzip"),
        (("--no-auto-compress",), "a.tar.xz", "", "xz"),
        (("-z",), "a.tar.zst", "gzip", "zstd"),
        (("-z", "-a"), "a.tar.zst", "gzip", "zstd"),
        (("--gzip",), "a.txz", "gzip", "xz"),
        (("--zstd",), "a.tgz", "zstd", "gzip"),
        (("--no-auto-compress",), "a.zip", "", "zip"),
        (("-z",), "a.zip", "gzip", "zip"),
        (("--gzip",), "a.tgz", "gzip", ""),
        (("--gzip",), "a.tar", "gzip", ""),
    ],
)
def test_option_takes_precedence_over_the_name(
    words: tuple[str, ...], name: str, method: str, named: str, tree: Path, tmp_path: Path
) -> None:
    need_zstd(method)
    run = ptar("-c", *words, "-f", name, "tree", cwd=tmp_path)
    assert run.returncode == 0, show(run)
    assert compression_of(tmp_path / name) == method
    how = f"compressed with {method}" if method else "not compressed"
    text = f"ptar: {name}: {how}, although the suffix of the name stands for {named}\n" if named else ""
    assert run.stderr.decode() == text


def test_configuration_file_may_disable_the_choice(tree: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("no-auto-compress: true\n")
    for words, method in (((), ""), (("-a",), "gzip"), (("-z",), "gzip")):
        run = ptar("-cq", *words, "--config", config, "-f", "a.tar.gz", "tree", cwd=tmp_path)
        assert run.returncode == 0, show(run)
        assert compression_of(tmp_path / "a.tar.gz") == method, words
    config.write_text("auto-compress: false\n")
    run = ptar("-cq", "--config", config, "-f", "a.tar.gz", "tree", cwd=tmp_path)
    assert (run.returncode, b"cannot be set by a file" in run.stderr) == (2, True), show(run)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A tree whose archive has several pieces."""
    tree = tmp_path / "tree"
    for number in range(8):
        (tree / f"d{number}").mkdir(parents=True)
        for each in range(40):
            (tree / f"d{number}/f{each}").write_bytes(os.urandom(200_000))
    return tree


@pytest.mark.parametrize(("first", "method"), [((), "gzip"), (("--no-auto-compress",), "")])
def test_resumed_run_keeps_the_compression(first: tuple[str, ...], method: str, large: Path) -> None:
    """Also without the option with which the interrupted run was started."""
    single = made(large, "single.tar.gz", *first)
    interrupt(large, *first, ranks=2, calls=12, name="a.tar.gz")
    summary = go_on(large, ranks=2, name="a.tar.gz")
    assert summary["pieces_resumed"] > 0
    assert compression_of(large.parent / "a.tar.gz") == method
    assert_same(single, large.parent / "a.tar.gz")


@pytest.mark.parametrize(("words", "method"), [(("-z",), "gzip"), (("--no-auto-compress",), "")])
def test_another_compression_begins_again(words: tuple[str, ...], method: str, large: Path) -> None:
    single = made(large, "single.tar.gz", *words)
    other = ("--no-auto-compress",) if words == ("-z",) else ()
    interrupt(large, *other, ranks=2, calls=12, name="a.tar.gz")
    summary = go_on(large, *words, ranks=2, name="a.tar.gz")
    assert summary["pieces_resumed"] in (0, None)
    assert compression_of(large.parent / "a.tar.gz") == method
    assert_same(single, large.parent / "a.tar.gz")


@pytest.mark.parametrize("words", [("-c",), ("-x",)])
def test_full_file_system_is_reported_with_what_to_do(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(4 * MIB))
    subprocess.run(["tar", "-cf", "made.tar", "large"], cwd=tmp_path, check=True)
    with small_file_system(tmp_path / "small", 2) as small:
        files = ("-f", small / "a.tar", "large") if words == ("-c",) else ("-f", "made.tar", "-C", small)
        run = ptar(*words, *files, cwd=tmp_path)
        assert run.returncode == 75, show(run)
        last = run.stdout.decode().splitlines()[-1]
        wanted = f"stopped early (status 75): make room in the file system of {small}, then repeat the command "
        assert last.startswith(wanted), show(run)
        subprocess.run(["mount", "-o", "remount,size=20m", small], check=True)
        again = ptar(*words, *(("--resume",) if "--resume" in last else ()), *files, cwd=tmp_path)
        assert again.returncode == 0, show(again)
        assert left(small) == []
