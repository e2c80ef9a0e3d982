"""``pbcast`` puts the same files into a directory of each host and reports each host on which it fails.

Namespaces stand for hosts: each rank has its own host name and mounts, and lists its files at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.launch.launchers import HYDRA
from tests.support.command import Argument, Completed, pcopy, show
from tests.support.faults import require_strace, slowed
from tests.support.files import noise
from tests.support.oracle import differences
from tests.support.processes import HANGS, background, wait_until
from tests.support.traces import whole_lines
from tests.support.users import require_root

MIB = 1 << 20
GRACE = HANGS

HOST = """
exec unshare --mount --uts sh -c '
hostname h$PMI_RANK
[ -n "$SHARED" ] || mount -t tmpfs none "$PLACE"
mkdir -p "$PLACE/d"
eval "$CHANGE"
"$@"
status=$?
cd "$PLACE/d" && find . -type f -exec sha256sum {} + >"$REPORTED/h$PMI_RANK"
ls -Al --time-style=full-iso >"$REPORTED/ls$PMI_RANK"
exit $status
' sh "$@"
"""


def pbcast(*arguments: Argument, **options: Any) -> Completed:
    return pcopy(*arguments, **options, program="pbcast")


class Hosts(NamedTuple):
    """Simulated hosts. ``place`` is another file system on each, with the directory ``target`` in it."""

    place: Path
    reported: Path

    @property
    def target(self) -> Path:
        return self.place / "d"

    def run(
        self, number: int, *arguments: Argument, change: str = "", shared: bool = False, trace: Sequence[str] = ()
    ) -> Completed:
        """Run pbcast to ``target`` with one rank on each of ``number`` hosts.

        Each rank first runs the shell commands ``change``; ``trace`` is a prefix of its command.
        """
        env = {
            "PLACE": str(self.place),
            "REPORTED": str(self.reported),
            "CHANGE": change,
            "SHARED": "yes" if shared else "",
        }
        wrap = [HYDRA, "-n", str(number), "sh", "-c", HOST, "sh", *trace]
        return pbcast(*arguments, self.target, wrap=wrap, env=env, timeout=60)

    def has(self, number: int) -> dict[str, str]:
        """Return the digests of the files of host ``number``, computed by sha256sum(1)."""
        lines = (self.reported / f"h{number}").read_text().splitlines()
        return {name.removeprefix("./"): digest for digest, name in (line.split("  ", 1) for line in lines)}


@pytest.fixture
def hosts(area: Path) -> Iterator[Hosts]:
    require_root("make namespaces")
    pytest.importorskip("mpi4py")
    for name in ("place", "told"):
        (area / name).mkdir()
    yield Hosts(area / "place", area / "told")


@pytest.fixture
def files(area: Path) -> list[Path]:
    """Return a large file of no whole number of pieces, small files, an empty file and one with holes."""
    source = area / "source"
    source.mkdir()
    (source / "large").write_bytes(noise(5 * MIB + 17))
    (source / "empty").touch()
    with open(source / "hollow", "wb") as file:
        file.truncate(4 * MIB)
        file.seek(2 * MIB)
        file.write(b"amid")
    for number in range(300):
        (source / f"small {number}").write_bytes(b"%d\n" % number)
    (source / "small 1").chmod(0o4751)
    os.setxattr(source / "small 2", "user.colour", b"blue")
    for number, path in enumerate(sorted(source.iterdir())):
        os.utime(path, ns=(10**18 + number, 10**18 - number))
    return sorted(source.iterdir())


def digests(files: Sequence[Path]) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_every_host_gets_all_files(hosts: Hosts, files: list[Path]) -> None:
    run = hosts.run(3, "--json", *files)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    reported = json.loads(run.stdout)
    assert (reported["sources"], reported["found"], reported["files"], reported["failed"]) == (303, 909, 909, 0)
    assert reported["bytes"] == 3 * sum(path.stat().st_size for path in files)
    for number in range(3):
        assert hosts.has(number) == digests(files)
    listings = {(hosts.reported / f"ls{number}").read_text().partition("\n")[2] for number in range(3)}
    assert len(listings) == 1
    assert "-rwsr-x--x" in listings.pop()


def test_source_is_read_once_by_one_rank(hosts: Hosts, files: list[Path], tmp_path: Path) -> None:
    require_strace()
    trace = ["strace", "-ff", "-y", "-qq", "-o", str(tmp_path / "log"), "-e", "trace=pread64"]
    large = next(path for path in files if path.name == "large")
    run = hosts.run(3, large, trace=trace)
    assert run.returncode == 0, show(run)
    read = [
        int(size)
        for file in tmp_path.glob("log.*")
        for size in re.findall(rf"^pread64\(\d+<{re.escape(str(large))}>.* = (\d+)$", file.read_text(), re.MULTILINE)
    ]
    assert sum(read) == large.stat().st_size
    assert hosts.has(2) == digests([large])


def test_directory_shared_by_hosts_is_written_once(hosts: Hosts, files: list[Path]) -> None:
    run = hosts.run(3, "--json", *files[:5], shared=True)
    assert run.returncode == 0, show(run)
    reported = json.loads(run.stdout)
    assert (reported["found"], reported["files"], reported["failed"]) == (5, 5, 0)
    line = f"pbcast: {hosts.target}: is one directory on h0, h1, h2: it is written once"
    assert run.stderr.decode().splitlines() == [line]
    assert sorted(os.listdir(hosts.target)) == [path.name for path in files[:5]]
    assert hosts.has(2) == digests(files[:5])


@pytest.mark.in_turn(1)
@pytest.mark.parametrize(
    ("change", "operation", "reason"),
    [
        ('[ $PMI_RANK != 1 ] || mount -t tmpfs -o size=3m none "$PLACE/d"', "write", "No space left on device"),
        ('[ $PMI_RANK != 1 ] || mount -t tmpfs -o ro none "$PLACE/d"', "create", "Read-only file system"),
        ('[ $PMI_RANK != 1 ] || mkdir "$PLACE/d/large"', "rename", "Is a directory"),
    ],
    ids=["full", "read-only", "directory"],
)
def test_failing_host_is_named_and_the_other_hosts_get_the_files(
    hosts: Hosts, files: list[Path], change: str, operation: str, reason: str
) -> None:
    large = next(path for path in files if path.name == "large")
    small = next(path for path in files if path.name == "small 7")
    run = hosts.run(3, "--json", large, small, change=change)
    assert run.returncode == 1, show(run)
    reported = json.loads(run.stdout)
    assert reported["found"] == 6 == reported["files"] + reported["failed"]
    if reason != "Read-only file system":
        assert reported["failed"] == 1
        assert f"pbcast: {hosts.target}/large: {operation}: {reason}: on h1" in run.stderr.decode(), show(run)
        assert hosts.has(1) == digests([small])
    else:
        assert f"{operation}: {reason}: on h1" in run.stderr.decode(), show(run)
        assert hosts.has(1) == {}
    assert hosts.has(0) == hosts.has(2) == digests([large, small])


def test_host_without_the_directory_fails(hosts: Hosts, files: list[Path]) -> None:
    change = '[ $PMI_RANK != 2 ] || { rmdir "$PLACE/d"; trap "mkdir $PLACE/d" EXIT; }'
    run = hosts.run(3, "--json", *files[:2], change=change)
    assert run.returncode == 1, show(run)
    assert run.stderr.decode().count("open: No such file or directory: on h2 (ENOENT)") == 2
    assert hosts.has(0) == hosts.has(1) == digests(files[:2])


def test_dry_run_lists_hosts_that_cannot_store_the_files(hosts: Hosts, files: list[Path]) -> None:
    large = next(path for path in files if path.name == "large")
    change = 'case $PMI_RANK in 1) mount -t tmpfs -o size=3m none "$PLACE/d" ;; 2) rmdir "$PLACE/d" ;; esac'
    run = hosts.run(3, "--dry-run", large, change=change)
    assert run.returncode == 1, show(run)
    assert b"1 file of 5.00 MiB would be sent to 3 hosts: 2 cannot take them" in run.stdout
    lines = sorted(run.stderr.decode().splitlines())
    assert any(line.endswith("write: 5.00 MiB are needed, 3.00 MiB are free, on h1") for line in lines), lines
    assert any("open: No such file or directory: on h2" in line for line in lines), lines
    assert hosts.has(0) == hosts.has(1) == {}


def test_dry_run_reports_the_errors_of_a_run(hosts: Hosts, files: list[Path]) -> None:
    """A file with holes needs only the space of its data."""
    hollow = files[0].parent / "huge"
    with open(hollow, "wb") as file:
        file.truncate(1 << 40)
    change = 'case $PMI_RANK in 1) mount -t tmpfs -o ro none "$PLACE/d" ;; 2) mkdir "$PLACE/d/huge" ;; esac'
    run = hosts.run(3, "--dry-run", hollow, change=change)
    assert run.returncode == 1, show(run)
    assert b"to 3 hosts: 2 cannot take them" in run.stdout
    assert sorted(run.stderr.decode().splitlines()) == [
        f"pbcast: {hosts.target}/huge: rename: Is a directory: on h2 (EISDIR)",
        f"pbcast: {hosts.target}: create: Read-only file system: on h1 (EROFS)",
    ]


def test_source_that_changes_while_it_is_read_fails_on_all_hosts(
    hosts: Hosts, files: list[Path], tmp_path: Path
) -> None:
    """The older copies are kept and other files are sent. Reads are slow; the file changes after the first one."""
    require_strace()
    large = next(path for path in files if path.name == "large")
    await_read = 'while ! grep -q . "$REPORTED/begun" 2>/dev/null; do sleep 0.01; done'
    change = f'echo old >"$PLACE/d/large"; [ $PMI_RANK != 0 ] || {{ ({await_read}; echo >>"$LARGE") & }}'
    env = {
        "PLACE": str(hosts.place),
        "REPORTED": str(hosts.reported),
        "CHANGE": change,
        "SHARED": "",
        "LARGE": str(large),
    }
    trace = ["strace", "-f", "-qq", "-o", hosts.reported / "begun", "-P", large]
    trace += ["-e", "trace=pread64", "-e", "inject=pread64:delay_exit=200ms"]
    wrap = [HYDRA, "-n", "2", "sh", "-c", HOST, "sh", *trace]
    run = pbcast("--json", large, files[0], hosts.target, wrap=wrap, env=env, timeout=60)
    assert run.returncode == 1, show(run)
    assert run.stderr.decode().count(f"pbcast: {large}: read: the file changed while it was read") == 1, show(run)
    reported = json.loads(run.stdout)
    assert (reported["found"], reported["files"], reported["failed"]) == (4, 2, 2)
    for number in range(2):
        assert hosts.has(number) == {**digests([files[0]]), "large": hashlib.sha256(b"old\n").hexdigest()}


def test_broadcast_on_one_host_is_a_copy(area: Path, files: list[Path]) -> None:
    (area / "copies").mkdir()
    files = [path for path in files if path.name in ("large", "empty", "hollow", "small 1", "small 2")]
    run = pbcast(*files, area / "copies")
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    assert sorted(os.listdir(area / "copies")) == [path.name for path in files]
    assert [found for path in files for found in differences(path, area / "copies" / path.name)] == []
    hollow = (area / "copies/hollow").stat()
    assert hollow.st_blocks * 512 < hollow.st_size


@pytest.mark.parametrize("number", [1, 2])
def test_bandwidth_limit_holds_for_a_broadcast(hosts: Hosts, files: list[Path], tmp_path: Path, number: int) -> None:
    """In each second the ranks read at most the limit plus one read, as in pcopy; strace gives the times."""
    require_strace()
    source, limit = files[0].parent / "limited", 2 * MIB
    source.write_bytes(os.urandom(5 * MIB))
    trace = ["strace", "-ff", "-qq", "-ttt", "-y", "-o", str(tmp_path / "log"), "-e", "trace=pread64"]
    run = hosts.run(number, "--bwlimit", "2M", source, trace=trace)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    for host in range(number):
        assert hosts.has(host) == digests([source])
    line = rf"^([\d.]+) pread64\(\d+<{re.escape(str(source))}>.* = (\d+)$"
    reads = [each for file in tmp_path.glob("log.*") for each in re.findall(line, file.read_text(), re.MULTILINE)]
    moved = sorted((float(at), int(size)) for at, size in reads)
    assert sum(size for _, size in moved) == 5 * MIB
    for first, _ in moved:
        assert sum(size for at, size in moved if first <= at < first + 1) <= 1.35 * limit
    assert moved[-1][0] - moved[0][0] >= (5 - 0.5) * MIB / limit


def test_source_in_the_target_directory_is_skipped(area: Path, files: list[Path]) -> None:
    before = files[0].stat()
    run = pbcast("--json", files[0], area / "source")
    assert run.returncode == 0, show(run)
    assert json.loads(run.stdout)["skipped"] == 1
    assert files[0].stat() == before


def test_ranks_of_one_host_that_see_different_directories_fail(hosts: Hosts, files: list[Path]) -> None:
    run = hosts.run(2, files[0], change="hostname same")
    assert run.returncode == 1, show(run)
    assert b"is another directory for rank 1 than for the first rank of same" in run.stderr


@pytest.mark.in_turn(1)
@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ('[ $PMI_RANK = 0 ] || rmdir "$PLACE/d"', ["open: No such file or directory: on rank 1 of same (ENOENT)"]),
        ('mount -t tmpfs -o ro none "$PLACE/d"', ["create: Read-only file system: on same (EROFS)"]),
    ],
    ids=["none", "read-only"],
)
def test_error_of_several_ranks_of_a_host_is_reported_once(
    hosts: Hosts, files: list[Path], change: str, reported: list[str]
) -> None:
    change += "; hostname same"
    run = hosts.run(2, "--json", files[0], change=change)
    assert run.returncode == 1, show(run)
    lines = [line for line in run.stderr.decode().splitlines() if line.startswith("pbcast: ")]
    assert len(lines) == len(reported) == json.loads(run.stdout)["failed"], show(run)
    assert all(line.endswith(text) for line, text in zip(lines, reported, strict=True)), lines


def test_holes_are_neither_read_nor_sent(area: Path) -> None:
    """The file has 12 bytes of data in 1 TiB."""
    require_strace()
    (area / "copies").mkdir()
    with open(area / "huge", "wb") as file:
        file.write(b"begin")
        file.seek(1 << 39)
        file.write(b"amid")
        file.truncate(1 << 40)
        file.seek((1 << 40) - 3)
        file.write(b"end")
    log = area / "log"
    trace = ["strace", "-f", "-y", "-qq", "-o", log, "-e", "trace=pread64"]
    run = pbcast(area / "huge", area / "copies", wrap=trace, timeout=GRACE)
    assert run.returncode == 0, show(run)
    reads = (re.search(r"huge>.* = (\d+)$", line) for line in whole_lines(log))
    assert sum(int(read[1]) for read in reads if read) <= 3 * 4096
    copy = area / "copies/huge"
    assert (copy.stat().st_size, copy.stat().st_blocks) == (1 << 40, (area / "huge").stat().st_blocks)
    with open(copy, "rb") as file:
        for at, data in ((0, b"begin\0"), ((1 << 39) - 1, b"\0amid\0"), ((1 << 40) - 4, b"\0end")):
            file.seek(at)
            assert file.read(len(data)) == data


@pytest.mark.parametrize(
    "option",
    [
        ("--errors", "p.json"),
        ("--errors", "copies/p.json"),
        ("--report", "elsewhere/p.json"),
        ("--metrics", "hard link"),
    ],
)
def test_report_files_replace_neither_a_source_nor_a_copy(area: Path, option: tuple[str, str]) -> None:
    (area / "copies").mkdir()
    (area / "elsewhere").symlink_to("copies")
    contents = "" if option[0] == "--metrics" else '{"path": "'
    (area / "p.json").write_text(contents)
    if option[1] == "hard link":
        os.link(area / "p.json", area / "hard link")
    run = pbcast(*option, "p.json", "copies", cwd=area)
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    assert b"sent" in run.stderr
    assert ((area / "p.json").read_text(), os.listdir(area / "copies")) == (contents, [])


def test_link_to_the_source_is_not_replaced(area: Path) -> None:
    (area / "file").write_bytes(b"kept")
    (area / "copies").mkdir()
    (area / "copies/file").symlink_to("../file")
    for source in (area / "file", area / "copies/file"):
        run = pbcast(source, area / "copies")
        assert (run.returncode, run.stdout) == (2, b""), show(run)
        assert b"copies/file: is a symbolic link to " in run.stderr
    assert (area / "copies/file").is_symlink()


def test_signal_leaves_no_partial_file(area: Path, files: list[Path]) -> None:
    (area / "copies").mkdir()
    large = next(path for path in files if path.name == "large")
    with background(large, area / "copies", program="pbcast", wrap=slowed("pwrite64", 300)) as run:
        assert wait_until(lambda: os.listdir(area / "copies"), GRACE)
        for number in run.ranks():
            os.kill(number, signal.SIGTERM)
        _, errors = run.process.communicate(timeout=GRACE)
        assert run.process.returncode == 75, errors
    assert os.listdir(area / "copies") == []


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("file",), ["FILE... and DIR expected"]),
        (("file", "nowhere"), ["nowhere: No such file or directory"]),
        (("file", "file"), ["file: is not a directory"]),
        (("directory", "copies"), ["directory: is a directory", "ptar -c -f FILE.tar directory"]),
        (("nothing", "copies"), ["nothing: No such file or directory"]),
        (("fifo", "copies"), ["fifo: is not a regular file"]),
        (("file", "other/file", "copies"), ["would get the same name"]),
        (("-n", "4", "file", "copies"), ["start pbcast with mpiexec"]),
        (("-r", "directory", "copies"), ["tar"]),
        (("--fsync", "--no-sync", "file", "copies"), ["leave one out"]),
    ],
)
def test_invalid_command_lines_are_refused(area: Path, words: tuple[str, ...], parts: list[str]) -> None:
    for name in ("directory", "copies", "other"):
        (area / name).mkdir()
    (area / "file").touch()
    (area / "other/file").touch()
    os.mkfifo(area / "fifo")
    run = pbcast(*words, cwd=area)
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    (line,) = run.stderr.decode().splitlines()
    assert [part for part in parts if part not in line] == [], line
    assert os.listdir(area / "copies") == []
    assert stat.S_ISFIFO((area / "fifo").stat().st_mode)
