"""``pdbench`` counts its operations, removes its files, and explains its results."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pcopy.fsio.backend.choose import backend_name
from tests.support.command import Argument, Completed, pcopy, show
from tests.support.faults import require_strace, slowed
from tests.support.filesystems import mounted
from tests.support.processes import HANGS, background, wait_until
from tests.support.users import NOBODY, require_root

QUICK = ("--repeat", "1", "--time", "0.02", "--files", "300", "--size", "256K", "--blocks", "64K,128K")
GRACE = HANGS


def pdbench(*arguments: Argument, **options: Any) -> Completed:
    return pcopy(*arguments, **options, program="pdbench")


def results(*arguments: Argument, **options: Any) -> dict[str, Any]:
    run = pdbench("--json", *arguments, **options)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    reported: dict[str, Any] = json.loads(run.stdout)
    return reported


def assert_refused(run: Completed, *parts: str) -> None:
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    (line,) = run.stderr.decode().splitlines()
    assert line.startswith("pdbench: ")
    assert [part for part in parts if part not in line] == []


@pytest.mark.c_backend
@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_all_tests_run_in_all_configurations(area: Path, launcher: str | None) -> None:
    reported = results(*QUICK, "--in-flight", "4", area, ranks=2, launcher=launcher)
    ways = Counter(
        (each["test"], each["directories"], each["ranks"], each["in_flight"]) for each in reported["metadata"]
    )
    threads = (1, 4) if backend_name() == "c" else (1,)
    wanted = {
        (test, directories, ranks, in_flight): 1
        for test in ("create", "stat", "open", "readdir", "rename", "unlink")
        for directories in ("shared", "own")
        for ranks in (1, 2)
        for in_flight in threads
        if test != "readdir" or in_flight == 1
    }
    assert ways == wanted
    own = {(each["test"], each["ranks"], each["block_size"]) for each in reported["data"] if each["files"] == "own"}
    assert own == {(test, ranks, block << 10) for test in ("write", "read") for ranks in (1, 2) for block in (64, 128)}
    one = {(each["test"], each["ranks"], each["block_size"]) for each in reported["data"] if each["files"] == "shared"}
    assert one == {(test, 2, block << 10) for test in ("write", "read") for block in (64, 128)}
    for each in (*reported["metadata"], *reported["data"]):
        number, rate = ("bytes", "bytes_per_second") if "bytes" in each else ("operations", "operations_per_second")
        assert each[number] > 0
        assert each[rate] == pytest.approx(each[number] / each["seconds"], rel=0.02, abs=1)
    assert reported["best"]["ranks"] in (1, 2)
    assert os.listdir(area) == []


def calls(log: Path) -> Counter[str]:
    """Count the system calls that name a file of the benchmark."""
    name = r'"[fr]?\d+\.\d+"'
    made = re.findall(rf"^\d+ +(\w+)\(\d+, {name}, ?(.*)", log.read_text(), re.MULTILINE)
    found = Counter[str]()
    for call, rest in made:
        if "O_DIRECTORY" not in rest and "AT_REMOVEDIR" not in rest:
            found["create" if "O_CREAT" in rest else call] += 1
    return found


@pytest.mark.parametrize("backend", ["c", "python"])
def test_reported_operations_equal_the_system_calls(area: Path, tmp_path: Path, backend: str) -> None:
    require_strace()
    if backend == "c" and backend_name() != "c":
        pytest.skip("there is no C backend here")
    log = tmp_path / "log"
    trace = ["strace", "-f", "-qq", "-o", log, "-e", "trace=openat,newfstatat,renameat,unlinkat"]
    some = ("--tests", "create,stat,open,rename,unlink", "--files", "100", "--time", "60")
    words = (*some, "--in-flight", "1", "--repeat", "1")
    reported = results(*words, area, ranks=2, wrap=trace, env={"PCOPY_BACKEND": backend}, real=True)
    sums = Counter[str]()
    for each in reported["metadata"]:
        assert each["operations"] == 100 * each["ranks"]
        sums[each["test"]] += each["operations"]
    made = calls(log)
    assert sums == dict.fromkeys(("create", "stat", "open", "rename", "unlink"), 600)
    assert made == {"create": 600, "newfstatat": 600, "openat": 600, "renameat": 600, "unlinkat": 600}


def test_ranks_read_files_of_another_rank(area: Path, tmp_path: Path) -> None:
    """With two ranks, each rank reads the files that the other one created."""
    require_strace()
    log = tmp_path / "log"
    trace = ["strace", "-f", "-qq", "-o", log, "-e", "trace=openat,newfstatat"]
    words = ("--tests", "stat,open,read", "--files", "5", "--size", "64K", "--blocks", "64K", "--in-flight", "1")
    results(*words, area, ranks=2, wrap=trace)
    found = re.findall(r'^(\d+) +\w+\(\d+, "w?(?:data\.([01])|([01])\.\d+)", ?(.*)', log.read_text(), re.M)
    calls = [(process, data or number, rest) for process, data, number, rest in found if "O_DIRECTORY" not in rest]
    makers = {(process, number) for process, number, rest in calls if "O_CREAT" in rest}
    readers = {(process, number) for process, number, rest in calls if "O_CREAT" not in rest}
    (second,) = [process for process, number in makers if number == "1"]
    assert {number for process, number in readers if process == second} == {"0"}
    assert len(makers) == 2
    assert len(readers) == 3  # rank 0 alone reads its own files


def test_shared_file_has_one_segment_per_rank(area: Path, tmp_path: Path) -> None:
    """Each rank writes its own segment and reads that of another rank. Each of three repeats uses a new file."""
    require_strace()
    trace = ["strace", "-ff", "-qq", "-y", "-o", tmp_path / "log", "-e", "trace=pwrite64,preadv,preadv2"]
    words = ("--tests", "write,read", "--size", "300K", "--blocks", "64K", "--time", "60", "--repeat", "3")
    reported = results(*words, area, ranks=2, wrap=trace)
    moved: dict[tuple[str, str], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for log in tmp_path.glob("log.*"):
        line = r"^(p[a-z]+)\d*\(\d+<[^>]*/(data\.[\d.]+)>, .*(?:\.\.\., 65536|\], 1), (\d+)(?:, 0)?\) += 65536$"
        for call, name, at in re.findall(line, log.read_text(), re.M):
            moved[call, name][log.name].add(int(at))
    names = [name for call, name in moved if call == "pwrite" and re.fullmatch(r"data\.[1-9]\.2\.65536", name)]
    assert len(names) == 3
    segments = [{start + at for at in range(0, 256 << 10, 64 << 10)} for start in (0, 256 << 10)]
    for name in names:
        written, read = moved["pwrite", name], moved["preadv", name]
        assert sorted(written.values(), key=min) == segments
        assert read == {process: segments[not segments.index(at)] for process, at in written.items()}
    for each in reported["data"]:
        assert each["bytes"] == (256 << 10) * each["ranks"]
    assert os.listdir(area) == []


def test_each_measurement_is_repeated(area: Path, tmp_path: Path) -> None:
    require_strace()
    log = tmp_path / "log"
    trace = ["strace", "-f", "-qq", "-o", log, "-e", "trace=openat,newfstatat"]
    words = ("--tests", "create,stat", "--files", "10", "--time", "60", "--in-flight", "1", "--repeat", "5")
    reported = results(*words, area, ranks=2, wrap=trace)
    assert len(reported["metadata"]) == 8 and all(
        each["operations"] == 10 * each["ranks"] for each in reported["metadata"]
    )
    assert calls(log) == {"create": 5 * 60, "newfstatat": 5 * 60}
    assert reported["operations"] == 5 * 120


def test_rate_reflects_a_slow_file_system(area: Path) -> None:
    """Each call takes at least 2 ms: a rank can do 500 per second, and stops when its time has passed."""
    require_strace()
    words = ("--tests", "unlink", "--time", "0.1", "--files", "40", "--in-flight", "1")
    reported = results(*words, area, ranks=1, wrap=slowed("unlinkat", 2))
    for each in reported["metadata"]:
        if each["test"] == "unlink":
            assert 100 < each["operations_per_second"] < 500
            assert each["operations"] <= 40


def test_tables_advice_and_chart_are_produced(area: Path, tmp_path: Path) -> None:
    picture = tmp_path / "rates.svg"
    run = pdbench(*QUICK, "--in-flight", "1", "--svg", picture, area, ranks=2)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    text = run.stdout.decode()
    assert re.search(
        r"^operations a second, all files in one directory .*\n ranks +in flight +create +stat", text, re.M
    )
    assert re.search(r"^for trees of small files: -n [12] --in-flight 1 ", text, re.M)
    assert re.search(r"^writing is fastest with [12] ranks? and blocks of (64|128)", text, re.M)
    drawn = ElementTree.parse(picture).getroot()
    shown = "".join(drawn.itertext())
    for test in ("create", "stat", "open", "readdir", "rename", "unlink", "write", "read"):
        assert f"{test}, " in shown


def test_chart_replaces_only_an_older_chart(area: Path) -> None:
    """A stopped run draws no chart."""
    words = ("--tests", "stat", "--time", "0.02", "--files", "10", "--in-flight", "1", area)
    (area / "mine.svg").write_text("<svg></svg>")
    (area / "link.svg").symlink_to("mine.svg")
    (area / "directory.svg").mkdir()
    for name, part in (("mine", "not what --svg has written"), ("link", "symbolic link"), ("directory", "a directory")):
        assert_refused(pdbench("--svg", area / f"{name}.svg", *words, ranks=1), part)
    assert (area / "mine.svg").read_text() == "<svg></svg>"
    results("--svg", area / "new.svg", *words, ranks=1)
    results("--svg", area / "new.svg", *words, ranks=1)
    drawn = (area / "new.svg").read_text()
    with background(
        "-n", "1", "--svg", area / "new.svg", *words, program="pdbench", wrap=slowed("mkdirat", 2000)
    ) as run:
        assert wait_until(lambda: any(name.startswith(".pdb") for name in os.listdir(area)), GRACE)
        for number in run.ranks():
            os.kill(number, signal.SIGTERM)
        run.process.communicate(timeout=GRACE)
        assert run.process.returncode == 75
    assert (area / "new.svg").read_text() == drawn


@pytest.mark.c_backend
def test_benchmark_dry_run_creates_nothing(area: Path) -> None:
    run = pdbench(*QUICK, "--dry-run", "--in-flight", "4", area, ranks=2)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    number = 56 if backend_name() == "c" else 36
    assert run.stdout.startswith(b"%d measurements of up to 0.02 s, " % number), show(run)
    assert b"at a time up to 600 empty files and 512 KiB of data" in run.stdout
    assert os.listdir(area) == []


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_leaves_no_benchmark_files(area: Path, number: signal.Signals) -> None:
    words = ("--json", "--time", "5", "--files", "30000", area)
    with background("-n", "2", *words, program="pdbench") as run:
        made = lambda: any("." in name for _, _, names in os.walk(area) for name in names)  # noqa: E731
        assert wait_until(made, GRACE)
        run.send_signal(number)
        output, _ = run.process.communicate(timeout=GRACE)
        assert run.process.returncode == 75
        assert json.loads(output)["exit_status"] == 75
        assert run.survivors() == []
    assert os.listdir(area) == []


def test_full_file_system_is_reported_and_cleaned_up(area: Path) -> None:
    require_root("mount")
    with mounted("tmpfs", area, 2 << 20, "nr_inodes=1k") as place:
        (place / "kept").write_bytes(b"kept")
        words = ("--in-flight", "1", "--blocks", "64K", "--time", "5")
        assert_refused(pdbench(*words, place, ranks=1), "are needed at the same time", "smaller --size")
        assert_refused(pdbench(*words, "--size", "64K", "--files", "2000", place, ranks=1), "2,000 files", "fewer")
        await_file = f"while ! test -e {place}/.pdb*/data.0; do sleep 0.01; done"
        fill = subprocess.Popen(["sh", "-c", f"{await_file}; head -c 1700K /dev/zero >{place}/filled"])
        some = ("--tests", "write", "--size", "1M", "--json", *words, place)
        run = pdbench(*some, ranks=1, wrap=slowed("pwrite64", 50))
        fill.wait()
        assert run.returncode == 1, show(run)
        assert b"write: No space left on device (ENOSPC)" in run.stderr
        assert json.loads(run.stdout)["failed"] == 1
        assert sorted(os.listdir(place)) == ["filled", "kept"]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((), ["one DIR expected"]),
        (("a", "b"), ["one DIR expected"]),
        (("",), ["empty string"]),
        (("nowhere",), ["nowhere: No such file or directory"]),
        (("file",), ["file: is not a directory"]),
        (("--tests", "chmod", "."), ["'chmod' is not one of ", "create"]),
        (("--in-flight", "65", "."), ["from 1 to 64"]),
        (("--time", "0", "."), ["above 0"]),
        (("--blocks", "1000", "--direct", "."), ["block sizes must be multiples of a memory page"]),
        (("--svg", "picture.png", "."), ["must end in .svg"]),
        (("-B", "."), ["write --direct"]),
        (("--size", "64K", "--blocks", "64K,1M", "."), ["--size 65536", "--blocks"]),
    ],
)
def test_invalid_command_lines_are_refused(area: Path, words: tuple[str, ...], parts: list[str]) -> None:
    (area / "file").touch()
    assert_refused(pdbench(*words, cwd=area), *parts)
    assert os.listdir(area) == ["file"]


def test_directory_without_write_permission_is_refused(area: Path) -> None:
    require_root("be another user")
    assert_refused(pdbench(*QUICK, area, user=NOBODY), "no permission to create files")
