"""Verification on several hosts and under mpiexec: who reads what, and that all ranks end with the one result."""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.launch.launchers import Launchers, assert_refused
from tests.support.command import Argument, Completed, pverify, show, succeed, summary
from tests.support.faults import READS, Fault, require_strace
from tests.support.oracle import changes, differences, snapshot
from tests.support.signatures import expected, manifest_lines, signed
from tests.support.users import require_root

CHUNK = 4 << 20

TWO_HOSTS = """
case $PMI_RANK in
*[13579]) exec unshare --mount --uts sh -c 'hostname other; exec "$@"' sh "$@" ;;
esac
exec "$@"
"""
STATUS = '"$@"; status=$?; echo $status > "$STATUSES/$PMI_RANK"; exit $status'


def two_hosts() -> list[str]:
    """Ranks with odd numbers are on another host."""
    require_root("make namespaces")
    return ["sh", "-c", TWO_HOSTS, "sh"]


def host(rank: int) -> int:
    return rank % 2


# Who reads what

TRACE = """exec strace -f -y -qq -s 0 -e signal=none -e trace=renameat,renameat2,write,pwrite64,read,preadv,preadv2 \
-o "$LOGS/$PMI_RANK" "$@"
"""
CALL = re.compile(rb"(\w+)\(\d+<([^>]*)>, (.*)\) += (\d+)$")
RENAME = re.compile(rb"renameat2?\(\d+<([^>]*)>, \"([^\"]*)\", \d+<([^>]*)>, \"([^\"]*)\"")
PLACE = {b"pwrite64": -1, b"preadv": -1, b"preadv2": -2}  # where the offset stands among the arguments


def calls(log: Path) -> Iterator[bytes]:
    """Whole calls, also where another thread's came between the begin and the end of one."""
    begun: dict[bytes, bytes] = {}
    for line in log.read_bytes().splitlines():
        pid, text = line.split(None, 1)
        if text.endswith(b" <unfinished ...>"):
            begun[pid] = text.removesuffix(b" <unfinished ...>")
        elif text.startswith(b"<... "):
            yield begun.pop(pid, b"") + text.partition(b"resumed>")[2]
        else:
            yield text


class Accesses:
    """The hosts that have written and read each chunk of each file below ``copy``, files named by their inodes."""

    def __init__(self, logs: Path, copy: Path) -> None:
        self.written: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.read: dict[tuple[int, int], set[int]] = defaultdict(set)
        renamed: dict[bytes, bytes] = {}
        found: list[tuple[bytes, bytes, int, int]] = []
        for log in sorted(logs.iterdir()):
            for call in calls(log):
                if rename := RENAME.match(call):
                    directory, old, to, new = rename.groups()
                    renamed[directory + b"/" + old] = to + b"/" + new
                elif (match := CALL.match(call)) and match[2].startswith(bytes(copy) + b"/") and int(match[4]):
                    words = match[3].split(b", ")
                    offset = int(words[PLACE[match[1]]]) if match[1] in PLACE else 0
                    found.append((match[1], match[2], offset // CHUNK, host(int(log.name))))
        for name, path, chunk, where in found:
            inode = os.stat(renamed.get(path, path)).st_ino
            (self.written if b"write" in name else self.read)[inode, chunk].add(where)


@pytest.fixture
def tree(area: Path) -> Path:
    """Small files, large ones in chunks, and both with further names."""
    path = area / "tree"
    for name in ("a", "b/c", "d"):
        (path / name).mkdir(parents=True)
        for number in range(20):
            (path / name / str(number)).write_bytes(b"%d" % number * 500 + b".")
    (path / "large").write_bytes(os.urandom(6 * CHUNK + 5))
    (path / "linked").write_bytes(os.urandom(4 * CHUNK))
    os.link(path / "linked", path / "d/linked")
    for number in range(10):
        os.link(path / "a" / str(number), path / f"d/also-{number}")
    (path / "link").symlink_to("a")
    return path


@pytest.mark.timeout(120)
def test_no_host_reads_back_chunks_that_it_has_written(launchers: Launchers, area: Path, tree: Path) -> None:
    require_strace()
    logs, copy = area / "logs", area / "copy"
    logs.mkdir()
    options = ["--verify", "--chunk-size", str(CHUNK), "--block-size", "1M", "--json", "-q"]
    wrap = [*two_hosts(), "sh", "-c", TRACE, "sh"]
    run = launchers.run("hydra", 4, *options, tree, copy, env={"LOGS": str(logs)}, wrap=wrap)
    assert summary(run)["ranks"] == 4, show(run)
    assert differences(tree, copy) == []
    accesses = Accesses(logs, copy)
    files = {path.stat().st_ino: path for path in copy.rglob("*") if path.is_file() and not path.is_symlink()}
    chunks = {(inode, chunk) for inode, path in files.items() for chunk in range(-(-path.stat().st_size // CHUNK))}
    assert accesses.written.keys() == chunks
    assert accesses.read.keys() == chunks
    again = {
        (files[inode].name, chunk)
        for inode, chunk in chunks
        if accesses.written[inode, chunk] & accesses.read[inode, chunk]
    }
    assert again == set()


# Under mpiexec


@pytest.fixture
def run(launchers: Launchers, area: Path) -> Iterator[Run]:
    yield Run(launchers, area)


class Run:
    """``run(...)``: pverify (or pcopy) on three ranks of two hosts, all of which end with the same status."""

    def __init__(self, launchers: Launchers, area: Path) -> None:
        self._launchers = launchers
        self._statuses = area / "statuses"

    def __call__(self, *arguments: Argument, program: str = "pverify", wrap: Sequence[Argument] = ()) -> Completed:
        self._statuses.mkdir()
        wrap = [*two_hosts(), "sh", "-c", STATUS, "sh", *wrap]
        env = {"STATUSES": str(self._statuses)}
        done = self._launchers.run("hydra", 3, *arguments, program=program, env=env, wrap=wrap)
        statuses = {path.name: int(path.read_text()) for path in self._statuses.iterdir()}
        assert statuses == dict.fromkeys(("0", "1", "2"), done.returncode), show(done)
        shutil.rmtree(self._statuses)
        return done


def reported(run: Completed) -> list[str]:
    return [line for line in run.stderr.decode().splitlines() if line.startswith("pverify: ")]


@pytest.fixture
def small(area: Path) -> Path:
    path = area / "small"
    for name in ("a", "b"):
        (path / name).mkdir(parents=True)
        for number in range(20):
            (path / name / str(number)).write_bytes(b"%d" % number * 500)
    (path / "large").write_bytes(os.urandom(5 << 20))
    (path / "link").symlink_to("a")
    os.mkfifo(path / "fifo")
    return path


def test_signature_is_created_and_compared_without_changing_the_trees(area: Path, small: Path, run: Run) -> None:
    copy, sig, manifest = area / "copy", area / "sig", area / "manifest"
    succeed("-q", small, copy)
    places = sorted(os.listdir(area))
    value = expected(small)
    before = [snapshot(path) for path in (small, copy)]

    created = run("--force", "--create", sig, "--manifest", manifest, small)
    assert created.returncode == 0, show(created)
    assert created.stdout == b""
    assert signed(sig) == value
    local = area / "local"
    assert pverify("-q", "--create", area / "local.sig", "--manifest", local, small, ranks=2).returncode == 0
    assert manifest.read_bytes() == local.read_bytes()

    for same in ((sig, copy), ("--manifest", manifest, copy), (small, copy)):
        done = run(*same)
        assert (done.returncode, done.stdout) == (0, b""), show(done)
        assert "pverify: the same" in reported(done)
    assert [changes(old, snapshot(path)) for old, path in zip(before, (small, copy), strict=True)] == [[], []]
    assert sorted(os.listdir(area)) == sorted([*places, "sig", "manifest", "local", "local.sig"])


def test_differences_are_listed_once(area: Path, small: Path, run: Run) -> None:
    copy, sig, manifest = area / "copy", area / "sig", area / "manifest"
    succeed("-q", "--signature", sig, "--manifest", manifest, small, copy)
    with open(copy / "a/7", "r+b") as file:
        file.write(b"x")
    (copy / "b/3").unlink()
    (copy / "new").touch()
    before = snapshot(copy)
    lines = [b"changed a/7", b"missing b/3", b"extra new"]

    done = run(sig, copy)
    assert (done.returncode, done.stdout) == (1, b""), show(done)
    for two in (("--manifest", manifest, copy), (small, copy)):
        done = run(*two)
        assert done.returncode == 1, show(done)
        assert sorted(done.stdout.splitlines()) == sorted(lines)
    assert changes(before, snapshot(copy)) == []


def test_unreadable_file_is_an_error_and_no_difference(area: Path, small: Path, run: Run) -> None:
    """Never a difference, and no reason to write a signature."""
    sig = area / "sig"
    copy = area / "copy"
    succeed("-q", small, copy)
    fault = Fault(area / "log", READS, small / "a/7", "EPERM")
    for words in (("--force", "--create", sig, small), (small, copy)):
        done = run(*words, wrap=fault.wrap())
        assert (done.returncode, done.stdout) == (2, b""), show(done)
        assert len([line for line in reported(done) if f"{small}/a/7: " in line]) == 1, show(done)
    assert not sig.exists()


def test_missing_prerequisite_is_refused_with_one_message(area: Path, run: Run) -> None:
    done = run("--create", area / "sig", area / "nothing")
    assert (done.returncode, done.stdout) == (2, b""), show(done)
    assert len(reported(done)) == 1, show(done)
    assert not (area / "sig").exists()


@pytest.mark.parametrize("damage", ["digit", "cut"])
def test_damaged_signature_or_manifest_is_refused_once(area: Path, small: Path, run: Run, damage: str) -> None:
    sig, manifest = area / "sig", area / "manifest"
    assert pverify("-q", "--create", sig, "--manifest", manifest, small).returncode == 0
    for path in (sig, manifest):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else data.replace(b"1", b"\x00", 1))
    for words in ((sig, small), ("--manifest", manifest, small)):
        done = run("-q", *words)
        assert (done.returncode, done.stdout) == (2, b""), show(done)
        assert len(reported(done)) == 1, show(done)
        assert os.fsdecode(words[-2]) in reported(done)[0]


def test_copy_under_mpiexec_is_signed_like_a_local_one(area: Path, small: Path, run: Run) -> None:
    words = ("--verify", "--signature", "--manifest")
    mine, theirs = ([area / f"{who}.{what}" for what in ("sig", "manifest")] for who in ("mpi", "local"))
    done = run("--json", "-q", words[0], words[1], mine[0], words[2], mine[1], small, area / "copy", program="pcopy")
    assert done.returncode == 0, show(done)
    succeed("-q", words[0], words[1], theirs[0], words[2], theirs[1], small, area / "local", ranks=2)
    assert summary(done)["signature"] == signed(mine[0]) == signed(theirs[0]) == expected(small)
    assert mine[1].read_bytes() == theirs[1].read_bytes()
    assert {line.path for line in manifest_lines(mine[1])} >= {b"large", b"a", b"a/7", b"fifo"}
    assert differences(small, area / "copy") == []


def test_refusal_of_pcopy_is_reported_once(launchers: Launchers, area: Path, small: Path) -> None:
    done = launchers.run("hydra", 3, "--signature", small / "sig", small, area / "copy")
    assert_refused(done, "lies in")
    assert not (area / "copy").exists()
