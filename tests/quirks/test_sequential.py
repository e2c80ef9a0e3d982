"""Destinations that cannot rename, refuse names with a leading dot, or accept only sequential writes, such as S3
mounts.

Each program writes a correct result there, or refuses in one line; in either case no temporary files are left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.latency import can_mount
from tests.support import native
from tests.support.command import Argument, Completed, pcopy, show, succeed, summary
from tests.support.faults import require_strace
from tests.support.oracle import changes, differences, snapshot
from tests.support.processes import background, wait_until
from tests.support.quirks import quirky

pytestmark = pytest.mark.skipif(not can_mount(), reason="it takes root and libfuse3-dev")

LARGE = 6 << 20
SEQUENTIAL_NOTICE = "each file was written under its own name, in order, by one rank"

RESTRICTED = {
    "no rename": ("rename=ENOSYS",),
    "no dot names": ("no_dot_names",),
    "in order": ("sequential",),
    "all of them": ("rename=EOPNOTSUPP", "no_dot_names", "sequential"),
}
both_backends = pytest.mark.parametrize(
    ("situation", "backend"),
    [
        ("no rename", "python"),
        ("no dot names", "c"),
        ("in order", "c"),
        ("all of them", "c"),
        ("all of them", "python"),
    ],
)


@contextmanager
def restricted(area: Path, situation: str) -> Iterator[tuple[Path, Path]]:
    """Yield a mounted directory with this restriction, and the directory that it shows."""
    backing = area / "backing"
    backing.mkdir()
    with quirky(backing, *RESTRICTED[situation]) as mounted:
        yield mounted, backing


@pytest.fixture
def source(area: Path) -> Path:
    """A large file, one with holes, small ones, two names of one file, and a symbolic link."""
    source = area / "source"
    (source / "within").mkdir(parents=True)
    (source / "large").write_bytes(os.urandom(LARGE))
    with (source / "holes").open("wb") as file:
        file.write(b"begin")
        file.seek(3 << 20)
        file.write(b"middle")
        file.truncate(5 << 20)
    for number in range(4):
        (source / f"within/small{number}").write_bytes(b"%d" % number * 5000)
    os.link(source / "within/small1", source / "within/name")
    (source / "within/link").symlink_to("small0")
    os.utime(source, ns=(10**18, 10**18))
    return source


def run(*words: Argument, backend: str = "python", program: str = "pcopy", ranks: int | None = 3) -> Completed:
    if backend == "c":
        native.require()
    return pcopy(*words, program=program, ranks=ranks, env={"PCOPY_BACKEND": backend})


def unlike(source: Path, copy: Path) -> list[str]:
    """Return the differences, except holes, which are filled."""
    return [line for line in differences(source, copy) if not line.startswith("allocated bytes ")]


def left_over(backing: Path) -> list[str]:
    return [path.name for path in backing.rglob("*pcopy-*")]


@both_backends
def test_copies_are_correct_and_the_summary_states_how_they_were_written(
    area: Path, source: Path, situation: str, backend: str
) -> None:
    with restricted(area, situation) as (mounted, backing):
        for change in ("new", "replaced", "updated"):
            if change == "updated":
                (source / "large").write_bytes(os.urandom(LARGE))
                (source / "within/small2").write_bytes(b"changed")
            words: list[Argument] = ["--chunk-size", "1M", f"{source}/", mounted / "copy"]
            done = run(*words, program="psync" if change == "updated" else "pcopy", backend=backend)
            assert done.returncode == 0, show(done)
            assert SEQUENTIAL_NOTICE in done.stdout.decode()
            assert not unlike(source, backing / "copy")
            assert not left_over(backing)


@pytest.mark.parametrize(("situation", "backend"), [("no rename", "c"), ("all of them", "python")])
def test_archives_are_unpacked_on_restricted_destinations(
    area: Path, source: Path, situation: str, backend: str
) -> None:
    subprocess.run(["tar", "--format=posix", "-C", source, "-cSf", area / "a.tar", "."], check=True)
    with restricted(area, situation) as (mounted, backing):
        (mounted / "copy").mkdir()
        (mounted / "copy/large").write_bytes(b"to be replaced")
        done = run("-x", "-f", area / "a.tar", "-C", mounted / "copy", program="ptar", backend=backend)
        assert done.returncode == 0, show(done)
        assert not unlike(source, backing / "copy")
        assert not left_over(backing)


def test_files_are_compressed_and_decompressed_on_restricted_destinations(area: Path, source: Path) -> None:
    with restricted(area, "all of them") as (mounted, backing):
        done = run("--compress", "zstd", "--chunk-size", "1M", f"{source}/", mounted / "packed")
        assert done.returncode == 0, show(done)
        unpacked = subprocess.run(["zstd", "-dcq", backing / "packed/large.zst"], check=True, capture_output=True)
        assert unpacked.stdout == (source / "large").read_bytes()
        done = run("--decompress", "--chunk-size", "1M", f"{mounted}/packed/", mounted / "copy")
        assert done.returncode == 0, show(done)
        compared = subprocess.run(["diff", "-r", source, backing / "copy"], check=False, capture_output=True)
        assert not compared.stdout
        assert not left_over(backing)


@pytest.mark.parametrize(
    ("program", "way"),
    [
        *(
            (program, way)
            for program in ("pcopy", "psync", "pcopy --dry-run")
            for way in ("asked for", "needed", "none")
        ),
        ("ptar", "needed"),
        ("ptar", "none"),
    ],
)
def test_json_summary_states_how_files_were_written(area: Path, source: Path, program: str, way: str) -> None:
    """``--dry-run`` does not examine the destination, so that it knows only of the option."""
    name, _, option = program.partition(" ")
    backing = area / "backing"
    backing.mkdir()
    (backing / "copy").mkdir()
    words: list[Argument] = ["--json", *filter(None, [option]), f"{source}/"]
    words += ["--inplace=sequential"] if way == "asked for" else []
    if name == "ptar":
        subprocess.run(["tar", "-C", source, "-cf", area / "a.tar", "."], check=True)
        words = ["--json", "-x", "-f", area / "a.tar", "-C"]
    with quirky(backing, *(["rename=ENOSYS"] if way == "needed" else [])) as mounted:
        done = run(*words, mounted / "copy", program=name, ranks=2)
    assert done.returncode == 0, show(done)
    assert json.loads(done.stdout)["sequential"] == (way == "asked for" or (way == "needed" and not option)), show(done)


REFUSED = {
    "ptar": ("-c", "-f", "{there}/made.tar", "{source}"),
    "pbcast": ("{source}/large", "{there}"),
    "pverify": ("--create", "{there}/signature", "{source}"),
    "pcopy -u": ("-u", "{source}", "{there}"),
    "pcopy --existing skip": ("--existing", "skip", "{source}", "{there}"),
    "pcopy --existing fail": ("--existing", "fail", "{source}", "{there}"),
    "pcopy --backup": ("--backup", "{elsewhere}", "{source}", "{there}"),
    "pcopy --metrics": ("--metrics", "{there}/made.prom", "{source}", "{elsewhere}"),
    "pwalk": ("{source}", "-o", "{there}/made.txt"),
}
SEQUENTIAL_WRITERS = ("pverify", "pcopy --metrics", "pwalk")
"""Programs that write one file sequentially."""


OTHER_SITUATIONS = [
    (situation, command) for situation in ("no dot names", "in order") for command in ("ptar", *SEQUENTIAL_WRITERS)
]


@pytest.mark.parametrize(
    ("situation", "command"), [*(("no rename", command) for command in REFUSED), *OTHER_SITUATIONS]
)
def test_unsupported_commands_are_refused_in_one_line(area: Path, source: Path, situation: str, command: str) -> None:
    program = command.split(maxsplit=1)[0]
    with restricted(area, situation) as (mounted, backing):
        places = {"there": mounted, "source": source, "elsewhere": area / "elsewhere"}
        words = [word.format(**places) for word in REFUSED[command]]
        done = run(*words, program=program, ranks=None)
        if situation == "in order" and command in SEQUENTIAL_WRITERS:
            assert done.returncode == 0, show(done)
            return
        assert done.returncode in {"pbcast": (1,), "pwalk": (2, 75)}.get(program, (2,)), show(done)
        lines = done.stderr.decode().splitlines()
        assert len(lines) == 1, show(done)
        assert "the file system " in lines[0]
        assert "unlink" not in lines[0]
        assert not list(backing.iterdir())


@pytest.mark.parametrize("way", ["resumed", "copied anew"])
def test_an_interrupted_copy_is_completed(area: Path, source: Path, way: str) -> None:
    with restricted(area, "all of them") as (mounted, backing):
        words: list[Argument] = ["--checkpoint", area / "job", f"{source}/", mounted / "copy"]
        slowly: list[Argument] = ["--bwlimit", "3M", *words]
        with background(*slowly, ranks=2, env={"PCOPY_BACKEND": "python"}) as killed:
            large = backing / "copy/large"
            assert wait_until(lambda: large.exists() and large.stat().st_size)
            killed.kill_all()
        assert large.stat().st_size < LARGE
        starting_over: list[Argument] = ["--existing", "changed", *words[2:]]
        succeed(*(("--resume", area / "job", "--bwlimit", "1G") if way == "resumed" else starting_over), ranks=2)
        assert not unlike(source, backing / "copy")
        assert not left_over(backing)


def test_files_that_cannot_be_replaced_fail_individually(area: Path, source: Path) -> None:
    RESTRICTED["no unlink"] = ("rename=ENOSYS", "unlink=EPERM")
    with restricted(area, "no unlink") as (mounted, backing):
        copied = succeed(f"{source}/", mounted / "copy", ranks=2)
        assert "/.pcopy-examination: a file of pcopy's own is left there" in copied.stderr.decode()
        before = snapshot(backing / "copy")
        done = run("--json", f"{source}/", mounted / "copy", backend="python")
        assert summary(done)["failed"] > 0
        assert all("has to be removed first" in line for line in done.stderr.decode().splitlines() if "large" in line)
        assert not [line for line in changes(before, snapshot(backing / "copy")) if "large" in line]
        assert set(left_over(backing)) == {".pcopy-examination"}


def test_inplace_sequential_applies_to_ordinary_file_systems(area: Path, source: Path) -> None:
    require_strace()
    wrap = ["strace", "-f", "-qq", "-e", "trace=rename,renameat,renameat2,ftruncate", "-o", area / "trace", "--"]
    for _ in range(2):
        words: list[Argument] = ["--checkpoint", "none", "--inplace=sequential", f"{source}/", area / "copy"]
        done = succeed(*words, ranks=2, wrap=wrap)
        assert SEQUENTIAL_NOTICE in done.stdout.decode()
        assert not unlike(source, area / "copy")
        named = [line for line in (area / "trace").read_text().splitlines() if "rename" in line or "ftrunc" in line]
        assert not named


def test_ordinary_file_systems_are_not_examined(area: Path, source: Path) -> None:
    require_strace()
    wrap = ["strace", "-f", "-qq", "-e", "trace=openat", "-o", area / "trace", "--"]
    succeed(f"{source}/", area / "copy", ranks=1, wrap=wrap)
    assert b"examination" not in (area / "trace").read_bytes()


@pytest.mark.parametrize("policy", [["-u"], ["--existing", "newer"], ["--existing", "skip"], ["--existing", "fail"]])
def test_policies_that_would_keep_incomplete_files_are_refused(area: Path, source: Path, policy: list[str]) -> None:
    done = pcopy("--inplace=sequential", *policy, source, area / "copy")
    assert done.returncode == 2, show(done)
    assert done.stderr.decode().count("\n") == 1
    assert not (area / "copy").exists()


def test_signal_leaves_only_complete_files(area: Path, source: Path) -> None:
    """After a stop every file under its final name is complete."""
    with background("--inplace=sequential", "--bwlimit", "3M", f"{source}/", area / "copy", ranks=2) as stopped:
        large = area / "copy/large"
        assert wait_until(lambda: large.exists() and large.stat().st_size)
        stopped.process.send_signal(signal.SIGTERM)
        stopped.process.communicate(timeout=60)
        assert stopped.process.returncode == 75
    whole = [path for path in (area / "copy").rglob("*") if path.is_file() and not path.is_symlink()]
    assert all(path.read_bytes() == (source / path.relative_to(area / "copy")).read_bytes() for path in whole)


def test_summary_does_not_say_how_files_were_written_if_none_was(area: Path, source: Path) -> None:
    with restricted(area, "no rename") as (mounted, _):
        words = f"{source}/", mounted / "copy"
        assert SEQUENTIAL_NOTICE in run(*words, program="psync").stdout.decode()
        done = run(*words, program="psync")
        assert done.returncode == 0 and SEQUENTIAL_NOTICE not in done.stdout.decode(), show(done)


@pytest.mark.parametrize("backend", ["c", "python"])
def test_names_with_a_leading_dot_fail_with_the_reason(area: Path, backend: str) -> None:
    source = area / "source"
    (source / ".directory").mkdir(parents=True)
    (source / ".file").write_text("contents")
    (source / ".link").symlink_to("elsewhere")
    os.mkfifo(source / ".fifo")
    archive = area / "archive"
    subprocess.run(["tar", "-cf", archive, "-C", source, "."], check=True)
    with restricted(area, "no dot names") as (mounted, _):
        (mounted / "there").mkdir()
        for program, words in (
            ("pcopy", (f"{source}/", mounted / "copy")),
            ("psync", (f"{source}/", mounted / "copy")),
            ("ptar", ("-x", "-f", archive, "-C", mounted / "there")),
        ):
            run_ = run(*words, program=program, backend=backend)
            assert run_.returncode == 1, show(run_)
            for name in (".directory", ".file", ".link", ".fifo"):
                (line,) = (each for each in run_.stderr.decode().splitlines() if f"/{name}: " in each)
                assert "Invalid argument: the file system may refuse names with a leading dot" in line, show(run_)
        measured = run("--size", "1M", "--files", "10", mounted, program="pdbench", backend=backend, ranks=1)
        assert measured.returncode == 1, show(measured)
        assert b"mkdir: Invalid argument: the file system may refuse names with a leading dot" in measured.stderr


@pytest.mark.parametrize("backend", ["c", "python"])
def test_names_that_are_not_utf_8_fail_with_the_reason(area: Path, backend: str) -> None:
    (area / "source").mkdir()
    (area / "source" / os.fsdecode(b"name\xff")).write_text("contents")
    (area / "backing").mkdir()
    with quirky(area / "backing", "utf8_only") as mounted:
        done = run(f"{area}/source/", mounted / "copy", backend=backend)
    assert done.returncode == 1, show(done)
    assert b": the file system may refuse names that are not UTF-8 (EILSEQ)" in done.stderr, show(done)
