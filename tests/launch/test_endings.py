"""How jobs end under each launcher: the status that it hands on, what is written, and that nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.launch.failing import BUG
from tests.launch.launchers import NAMES, Launchers, ranks_of, reported
from tests.support.command import Argument, Completed, command, show, succeed, summary
from tests.support.faults import Fault, require_strace
from tests.support.files import same_contents
from tests.support.oracle import differences
from tests.support.processes import PROMPT, Run, background, wait_for_temporary, wait_until

GRACE = 2 * PROMPT
RANKS = 3
STOPPED = 75


@contextmanager
def copying(launchers: Launchers, name: str, large: Path, area: Path, *, kept: bool = True) -> Iterator[Run]:
    """A run in the midst of its work, its ranks stopped until ``go_on``, so that it can't be over too early.

    Its job is ``kept`` in ``area``, or not at all.
    """
    (area / "copy").mkdir()
    line: list[Argument] = ["setsid", *launchers.line(name, RANKS)]  # a group of its own, as a shell gives to a job
    environment = {**launchers.environment(), "XDG_STATE_HOME": str(area / "state")}
    options = ["--chunk-size", "16M", "--no-sync", *([] if kept else ["--checkpoint", "none"])]
    with background(*options, large, area / "copy", wrap=line, env=environment) as run:
        assert wait_until(lambda: len(ranks_of(run)) == RANKS)
        ranks = ranks_of(run)  # known before the work begins, so that no time is lost then
        wait_for_temporary(run, os.fsencode(area / "copy"))
        for pid in ranks.values():
            os.kill(pid, signal.SIGSTOP)
        assert not (area / "copy" / large.name).exists()
        yield run


def go_on(run: Run) -> None:
    for pid in ranks_of(run).values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def shared_memory(run: Run) -> set[str]:
    """The names in /dev/shm of what the ranks have mapped and not removed."""
    found: set[str] = set()
    for pid in ranks_of(run).values():
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        found |= set(re.findall(r" (/dev/shm/(?!.*pcopy).*)$", maps, re.MULTILINE))
    return {name for name in found if not name.endswith(" (deleted)")}


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("name", NAMES)
def test_failed_item_gives_status_1_and_one_summary(launchers: Launchers, area: Path, source: Path, name: str) -> None:
    (area / "copy/b/c/7/full").mkdir(parents=True)  # which a file can't replace
    run = launchers.run(name, RANKS, "--json", "-T", source, area / "copy")
    assert run.returncode == 1, show(run)
    assert summary(run)["failed"] == 1
    failed, how_to_go_on = reported(run)
    assert "c/7" in failed, show(run)
    assert "--resume" in how_to_go_on or how_to_go_on.endswith("start it again"), show(run)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("name", "broken"), [("hydra", 0), ("hydra", 2), ("open_mpi", 2), ("pmi2", 2)])
def test_exception_gives_status_70_and_one_traceback(
    launchers: Launchers, area: Path, source: Path, name: str, broken: int
) -> None:
    run = run_broken(launchers, name, str(broken), source, area / "copy")
    assert run.returncode == 70, show(run)
    assert run.stderr.decode().count(f"RuntimeError: {BUG}") == 1, show(run)


def run_broken(launchers: Launchers, name: str, how: str, *arguments: Argument, **env: Argument) -> Completed:
    """To its end; ``how`` as ``tests.launch.failing`` has it."""
    variables = launchers.environment() | {name: str(value) for name, value in env.items()}
    line, environment = command(*arguments, wrap=launchers.line(name, RANKS), env=variables)
    line[line.index("pcopy")] = "tests.launch.failing"
    line.insert(line.index("tests.launch.failing") + 1, how)
    return subprocess.run(line, check=False, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)


@pytest.mark.parametrize("name", ["hydra", "open_mpi", "pmi2"])
def test_job_is_removed_after_all_ranks_have_closed_it(
    launchers: Launchers, area: Path, source: Path, name: str
) -> None:
    """All is done, a stop keeps rank 0 from waiting for the last cut, and then another rank makes its lock."""
    run = run_broken(launchers, name, "lock", "-q", source, area / "copy", XDG_STATE_HOME=area / "state")
    assert run.returncode == 0, show(run)
    assert reported(run) == [], show(run)
    assert os.listdir(area / "state/pcopy") == []


@pytest.mark.parametrize("rank", [0, 1])
def test_failing_rank_reports_reason_and_resume_command(
    launchers: Launchers, area: Path, source: Path, rank: int
) -> None:
    """The library of the digests can't be read by one rank, when the job is there already."""
    import xxhash

    (library,) = Path(xxhash.__file__).parent.glob("_xxhash*.so")
    fault = Fault(area / "log", ["openat"], library, "ENOMEM", when="1+")
    line, env = command("--verify", "--checkpoint", area / "job", "-T", source, area / "copy")
    one = [launchers.line("hydra", 1)[0], "-n", "1"]
    ranks = [[*one[1:], *(fault.wrap() if number == rank else []), *line] for number in range(2)]
    whole = [one[0], *ranks[0], ":", *ranks[1]]
    run = subprocess.run(whole, check=False, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    fault.check()
    lines = reported(run)
    assert "Traceback" not in run.stderr.decode(), show(run)
    if rank == 0:  # it asks for the library before anything is touched
        assert run.returncode == 2 and len(lines) == 1 and not (area / "job").exists(), show(run)
        return
    assert run.returncode == STOPPED, show(run)
    assert len(lines) == 2, show(run)
    why, how_to_go_on = lines
    assert "rank 1" in why and str(library) in why, show(run)
    assert how_to_go_on == f"pcopy: to go on: pcopy --resume {area}/job", show(run)
    succeed("--resume", area / "job")


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(("name", "to"), [*((name, "launcher") for name in NAMES), ("hydra", "rank"), ("pmi2", "rank")])
def test_sigusr1_stops_the_job_in_order(
    launchers: Launchers, area: Path, large: Path, name: str, to: str, kept: bool
) -> None:
    with copying(launchers, name, large, area, kept=kept) as run:
        if to == "launcher":
            run.process.send_signal(signal.SIGUSR1)
        else:
            os.kill(ranks_of(run)[RANKS - 1], signal.SIGUSR1)
        go_on(run)
        out, err = run.process.communicate(timeout=GRACE)
        assert run.process.returncode == (STOPPED if kept else 128 + signal.SIGUSR1), err
        assert run.survivors() == []
    assert out.decode().count("found = ") == 1
    assert err.decode().count("pcopy: stopped by SIGUSR1") == 1
    assert_left(area, large, kept)


def assert_left(area: Path, large: Path, kept: bool) -> None:
    """What a stop leaves: a job that goes on to the same end, started plainly; or no trace of what was under way."""
    assert not (area / "copy" / large.name).exists()
    if not kept:
        assert os.listdir(area / "copy") == []
        assert not (area / "state").exists()
        return
    succeed("--resume", env={"XDG_STATE_HOME": str(area / "state")})
    assert os.listdir(area / "copy") == [large.name]
    assert same_contents(large, area / "copy" / large.name)
    assert os.listdir(area / "state/pcopy") == []


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("whom", ["launcher", "group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_hydra_forwards_interrupts(
    launchers: Launchers, area: Path, large: Path, number: signal.Signals, whom: str, kept: bool
) -> None:
    """A terminal's Ctrl-C reaches the whole group, but the ranks are in another: they get it once, from mpiexec."""
    with copying(launchers, "hydra", large, area, kept=kept) as run:
        if whom == "group":
            os.killpg(run.process.pid, number)
        else:
            run.process.send_signal(number)
        go_on(run)
        assert run.end(GRACE) == (STOPPED if kept else 128 + number)
        assert run.survivors() == []
    assert_left(area, large, kept)


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("kept", [True, False])
def test_slurm_forwards_signals_of_scancel(launchers: Launchers, area: Path, large: Path, kept: bool) -> None:
    """Interrupting srun itself prints the step's state, and terminating it kills the ranks at once."""
    with copying(launchers, "pmi2", large, area, kept=kept) as run:
        variables = Path(f"/proc/{ranks_of(run)[0]}/environ").read_bytes()
        job = re.search(rb"\0SLURM_JOB_ID=(\d+)\0", variables)
        assert job
        line = ["scancel", "--signal=TERM", f"{job[1].decode()}.0"]
        subprocess.run(line, check=True, env={**os.environ, **launchers.environment()})
        go_on(run)
        assert run.end(GRACE) == (STOPPED if kept else 128 + signal.SIGTERM)
        assert run.survivors() == []
    assert_left(area, large, kept)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("name", "rank"), [("hydra", 2), ("open_mpi", 0), ("pmi2", 0), ("pmi2", 2), ("pmix", 2)])
def test_killed_rank_ends_the_job(launchers: Launchers, area: Path, large: Path, name: str, rank: int) -> None:
    """srun alone would let the others wait for ever."""
    with copying(launchers, name, large, area) as run:
        os.kill(ranks_of(run)[rank], signal.SIGKILL)
        go_on(run)
        begun = time.monotonic()
        assert run.end(GRACE) != 0
        assert time.monotonic() - begun < GRACE
        assert run.survivors() == []
    copy = area / "copy" / large.name
    assert not copy.exists() or same_contents(large, copy)  # the others may have finished it


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("name", ["hydra", "open_mpi", "pmi2"])
def test_no_shared_memory_file_remains_after_a_kill(launchers: Launchers, area: Path, large: Path, name: str) -> None:
    """MPICH's stay for ever unless they are removed while the job runs; Open MPI's mpiexec removes its own."""
    with copying(launchers, name, large, area) as run:
        mapped = shared_memory(run)
        if name == "open_mpi":
            for pid in ranks_of(run).values():
                os.kill(pid, signal.SIGKILL)
            run.process.communicate(timeout=GRACE)
        else:
            assert mapped == set()
            assert any("/dev/shm/mpich" in Path(f"/proc/{pid}/maps").read_text() for pid in ranks_of(run).values())
            run.kill_all()
        assert run.survivors() == []
    assert wait_until(lambda: not [path for path in mapped if os.path.exists(path)], 60), mapped


def test_stopped_rank_is_not_taken_for_a_dead_one(launchers: Launchers, area: Path, large: Path) -> None:
    with copying(launchers, "pmi2", large, area) as run:
        ranks = ranks_of(run)
        os.kill(ranks[1], signal.SIGCONT)  # the one that watches the last; without rank 0 the job can't be over yet
        time.sleep(2)
        assert run.process.poll() is None
        os.kill(ranks[2], signal.SIGUSR1)
        go_on(run)
        assert run.end(GRACE) == STOPPED


def test_only_rank_0_writes_to_standard_output(launchers: Launchers, area: Path, source: Path) -> None:
    """Each rank's standard output is a file of its own here."""
    script = 'exec "$@" >"$OUT/$PMI_RANK"'
    wrap: list[Argument] = ["sh", "-c", script, "sh"]
    (area / "out").mkdir()
    run = launchers.run("hydra", RANKS, source, area / "copy", wrap=wrap, env={"OUT": str(area / "out")})
    assert run.returncode == 0, show(run)
    written = {path.name: path.read_text() for path in (area / "out").iterdir()}
    assert sorted(written) == ["0", "1", "2"]
    assert "found = " in written["0"]
    assert written["1"] == written["2"] == ""


def test_ranks_wait_for_each_other_without_spinning(launchers: Launchers, area: Path, source: Path) -> None:
    """While rank 0 is slow to prepare, the others sleep."""
    program = (
        "import os, sys, time\n"
        "import pcopy.tools.copy as run\n"
        "prepare = run.CopyJob\n"
        "def slow(*given):\n"
        "    time.sleep(3)\n"
        "    return prepare(*given)\n"
        "run.CopyJob = slow\n"
        "from pcopy.cli.pcopy import main\n"
        "status = main(sys.argv[1:])\n"
        "with open(f'{os.environ[\"OUT\"]}/{os.getpid()}', 'w') as file:\n"
        "    file.write(str(time.process_time()))\n"
        "sys.exit(status)\n"
    )
    (area / "out").mkdir()  # what ranks write in the end, mpiexec may lose
    env = {"OUT": str(area / "out")}
    line, environment = command(source, area / "copy", wrap=launchers.line("hydra", 2), env=env)
    at = line.index("-m")
    line[at : at + 2] = ["-c", program]
    run = subprocess.run(line, check=False, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert run.returncode == 0, show(run)
    used = [float(path.read_text()) for path in (area / "out").iterdir()]
    assert len(used) == 2
    assert max(used) < 1, used


BLOCKED = """
if [ "$PMI_RANK" = 0 ]; then
    exec strace -qq -ttt -o "$OUT/blocked" -e trace=utimensat -e inject=utimensat:delay_enter=4000000:when=1 "$@"
fi
exec strace -qq -ttt -o "$OUT/idle" -e trace=clock_nanosleep,poll "$@"
"""


def test_idle_ranks_sleep(launchers: Launchers, area: Path) -> None:
    """What a pause costs is its end. MPI can't wake them: they looked 500 times a second, and used 25 ms for that."""
    require_strace()
    (area / "out").mkdir()
    (area / "source").touch()
    wrap: list[Argument] = ["sh", "-c", BLOCKED, "sh"]
    run = launchers.run("hydra", 2, area / "source", area / "copy", wrap=wrap, env={"OUT": str(area / "out")})
    assert run.returncode == 0, show(run)
    begin = float((area / "out/blocked").read_text().split()[0])
    pauses = re.findall(
        r"^([\d.]+) (?:clock_nanosleep|poll\(.*, [1-9]\d*\))", (area / "out/idle").read_text(), re.MULTILINE
    )
    times = [float(time) for time in pauses]
    looks = sum(begin + 1.5 < time < begin + 3.5 for time in times)
    assert 5 < looks < 100


REMOTE = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec sh -c "$*"
"""
"""Takes the place of ssh: the options, the host, and then what is to be run there."""


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("lost", [0, 1])
def test_resume_command_is_printed_before_a_host_is_lost(
    launchers: Launchers, area: Path, source: Path, lost: int
) -> None:
    """mpiexec kills the ranks of the other host at once: they have said it before."""
    require_strace()
    remote = area / "ssh"
    remote.write_text(REMOTE)
    remote.chmod(0o755)
    apart: list[Argument] = ["-launcher", "ssh", "-launcher-exec", remote, "-hosts", "h1,h2", "-ppn", "1"]
    mpiexec, *ranks = launchers.line("hydra", 2)
    slow: list[Argument] = ["strace", "-D", "-qq", "-o", "/dev/null", "-e", "trace=utimensat"]
    wrap: list[Argument] = [mpiexec, *apart, *ranks, *slow, "-e", "inject=utimensat:delay_enter=150000"]
    words: list[Argument] = ["--checkpoint", area / "job", "--checkpoint-interval", "0.2", source, area / "copy"]
    with background(*words, wrap=wrap, env=launchers.environment()) as run:
        assert run.process.stderr is not None
        told_before = next(line for line in iter(run.process.stderr.readline, b"") if b"--resume" in line)
        proxies = {pid: line for pid in run.processes() if (line := command_line(pid))[0].endswith("hydra_pmi_proxy")}
        (proxy,) = (pid for pid, line in proxies.items() if line[line.index("--proxy-id") + 1] == str(lost))
        for pid in (proxy, ranks_of(run)[lost]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.communicate(timeout=GRACE)
        assert run.survivors() == []
    assert run.process.returncode != 0
    assert told_before == f"pcopy: if ranks are lost: pcopy --resume {area}/job\n".encode()
    succeed("--resume", area / "job")
    assert differences(source, area / "copy") == []


def command_line(pid: int) -> list[str]:
    """Of a process of the run; a single empty word once it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return [""]


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("rank", [0, 2])
def test_surviving_rank_prints_the_resume_command(launchers: Launchers, area: Path, large: Path, rank: int) -> None:
    """srun lets the others live."""
    with copying(launchers, "pmi2", large, area) as run:
        os.kill(ranks_of(run)[rank], signal.SIGKILL)
        go_on(run)
        _, err = run.process.communicate(timeout=GRACE)
    assert err.decode().count("pcopy: to go on: pcopy --resume") == 1, err
