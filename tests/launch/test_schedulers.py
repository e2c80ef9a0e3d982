"""The scripts of ``examples``: a job is warned before its time is up, ends with 75, and goes on when it runs again.

Slurm is a real one. PBS is none: what its qsub would get is written down, and the test runs the script as PBS would.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.launch.examples import EXAMPLES, Desk
from tests.launch.launchers import SLURM, Launchers
from tests.support.command import REPOSITORY, Argument
from tests.support.preload import compiled
from tests.support.processes import Run

RANKS = 2
WARNED, MAY_BEGIN = 31, 31 + 125
"""Seconds by which Slurm's clock is ahead: when it looks at time limits once more; when a requeued job may begin."""


class Slurm:
    """One of its own, since its clock is moved; what is told it comes from the ``desk``."""

    def __init__(self, directory: Path, desk: Desk) -> None:
        self._directory = directory
        self._desk = desk
        self._environment = {**desk.environment, "SLURM_CONF": f"{directory}/slurm.conf", "SLURM_MPI_TYPE": "pmi2"}

    def start(self) -> None:
        self.set_clock(0)
        library = compiled(REPOSITORY / "tests/slurm/ahead.c", "-shared", "-fPIC")
        daemons = {**os.environ, "LD_PRELOAD": str(library), "SLURM_TEST_AHEAD": f"{self._directory}/ahead"}
        line: list[Argument] = [SLURM, "start", self._directory]
        begun = subprocess.run(line, check=False, env=daemons, capture_output=True, text=True, timeout=60)
        assert begun.returncode == 0, begun.stderr

    def set_clock(self, ahead: int) -> None:
        descriptor = os.open(
            self._directory / "ahead", os.O_WRONLY | os.O_CREAT
        )  # as it is: the daemons have mapped it
        os.write(descriptor, struct.pack("l", ahead))
        os.close(descriptor)

    def tell(self, *command: Argument) -> str:
        desk = self._desk
        return subprocess.run(
            command, check=True, cwd=desk.area, env=self._environment, stdout=subprocess.PIPE, text=True, timeout=60
        ).stdout

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of it."""
        reported = self.tell("scontrol", "show", "job", "--oneliner", number)
        return dict(word.split("=", 1) for word in reported.split() if "=" in word)

    def await_job(self, number: str, **values: str) -> dict[str, str]:
        """Until Slurm says so of the job."""
        for _ in range(100):
            if values.items() <= (reported := self.job(number)).items():
                break
            time.sleep(0.3)
        else:
            pytest.fail(f"{values} never came: {reported}")
        return reported


@contextmanager
def slurm_for(desk: Desk) -> Iterator[Slurm]:
    directory = tempfile.mkdtemp(prefix="pcopy-test-slurm-", dir="/tmp")
    os.chmod(directory, 0o755)
    slurm = Slurm(Path(directory), desk)
    try:
        slurm.start()
        yield slurm
    finally:
        subprocess.run([SLURM, "stop", directory], check=False, capture_output=True, timeout=60)
        shutil.rmtree(directory)


def test_slurm_script_requeues_itself_after_the_warning(launchers: Launchers, area: Path) -> None:
    """Its time is the shortest that Slurm has."""
    launchers.line("pmi2", 1)
    desk = Desk(area)
    with slurm_for(desk) as slurm:
        small = ["--nodes=1", "--ntasks-per-node=3", "--time=1", "--signal=USR1@10", "--output=log"]
        words: list[Argument] = [*small, EXAMPLES / "slurm.sh", f"{desk.source}/", desk.copy]
        number = slurm.tell("sbatch", "--parsable", *words).strip()
        desk.await_amid()
        slurm.set_clock(WARNED)
        slurm.await_job(number, JobState="PENDING", Reason="BeginTime", Restarts="1")
        log, before = (area / "log").read_text(), desk.copied()
        desk.assert_told(log)
        assert "Exited with exit code 75" in log, log
        desk.be_quick()
        slurm.set_clock(MAY_BEGIN)
        ended = slurm.await_job(number, JobState="COMPLETED")
    assert (ended["ExitCode"], ended["Restarts"]) == ("0:0", "1")
    assert (area / "log").read_text().startswith(log), "what the first run has said is gone"
    desk.assert_whole(before)


QSUB = r"""#!/bin/sh
# qsub -v NAME[=VALUE],... SCRIPT: PBS keeps the script as it is now
[ $# = 3 ] && [ "$1" = -v ] && mkdir -p "$QUEUE" || exit 2
number=$(ls "$QUEUE" | wc -l)
mkdir "$QUEUE/$number" && cp "$3" "$QUEUE/$number/script" && pwd >"$QUEUE/$number/directory" || exit 2
IFS=,
for each in $2; do
    case $each in
        *=*) echo "$each" ;;
        *) eval "echo \"$each=\$$each\"" ;;
    esac
done >"$QUEUE/$number/variables"
echo "$number.server"
"""


class Pbs:
    """Runs what qsub has put into its queue, as PBS does: in the home, with few variables, in a session of its own."""

    def __init__(self, desk: Desk) -> None:
        self._queue = desk.area / "queue"
        self._desk = desk
        desk.program("qsub", QSUB)
        (desk.area / "nodes").write_text("localhost\n" * RANKS)
        self._environment = {**desk.environment, "QUEUE": str(self._queue), "PBS_NODEFILE": f"{desk.area}/nodes"}

    def qsub(self, *words: Argument) -> None:
        subprocess.run(["qsub", *words], check=True, cwd=self._desk.area, env=self._environment, capture_output=True)

    @property
    def queued(self) -> list[str]:
        return sorted(os.listdir(self._queue))

    def run(self, number: str) -> AbstractContextManager[Run]:
        job = self._queue / number
        variables = dict(line.split("=", 1) for line in (job / "variables").read_text().splitlines())
        own = {"PBS_O_WORKDIR": (job / "directory").read_text().strip(), "PBS_JOBID": f"{number}.server"}
        return self._desk.started("sh", job / "script", cwd="home", env={**self._environment, **own, **variables})


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("name", ["hydra", "open_mpi"])
def test_pbs_script_resubmits_itself_after_the_warning(launchers: Launchers, area: Path, name: str) -> None:
    """With MPICH by timeout, when the time is nearly up; with Open MPI by qsig."""
    desk = Desk(area, launchers.line(name, 1)[0])
    shutil.copy(EXAMPLES / "pbs.sh", area)
    pbs = Pbs(desk)
    pbs.qsub("-v", f"SRC={desk.source}/,DST={desk.copy}", "pbs.sh")
    with pbs.run("0") as run:
        desk.await_amid()
        if name == "hydra":
            (timer,) = (pid for pid in run.processes() if Path(f"/proc/{pid}/comm").read_text() == "timeout\n")
            os.kill(timer, signal.SIGALRM)  # as its alarm clock would
        else:
            os.kill(run.process.pid, signal.SIGSTOP)  # the shell goes on when all have the signal
            for pid in [pid for pid in run.processes() if os.getsid(pid) == run.process.pid]:
                os.kill(pid, signal.SIGUSR1)
            os.kill(run.process.pid, signal.SIGCONT)
        desk.assert_stopped(run)
    assert pbs.queued == ["0", "1"]
    before = desk.copied()
    desk.be_quick()
    with pbs.run("1") as run:
        desk.assert_gone_on(run, before)
    assert pbs.queued == ["0", "1"]


def test_pbs_script_stops_before_its_walltime_ends() -> None:
    """The time of timeout is shorter than that of the job, by minutes."""
    script = (EXAMPLES / "pbs.sh").read_text()
    (hours,) = re.findall(r"^#PBS .*walltime=(\d\d):00:00$", script, re.MULTILINE)
    (minutes,) = re.findall(r"^timeout .* (\d+)m mpiexec ", script, re.MULTILINE)
    assert 5 <= 60 * int(hours) - int(minutes) <= 15


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("name", ["hydra", "open_mpi"])
def test_mpiexec_script_resumes_the_job_when_started_again(launchers: Launchers, area: Path, name: str) -> None:
    desk = Desk(area, launchers.line(name, 1)[0])
    (area / "hosts").write_text("localhost\n" * RANKS)
    words: list[Argument] = [EXAMPLES / "mpiexec.sh", "hosts", f"{desk.source}/", desk.copy]
    with desk.started(*words) as run:
        desk.await_amid()
        run.process.send_signal(signal.SIGUSR1)
        desk.assert_stopped(run)
    before = desk.copied()
    desk.be_quick()
    with desk.started(*words) as run:
        desk.assert_gone_on(run, before)


@pytest.mark.parametrize(
    ("page", "name"),
    [("docs/operations/batch.md", f"{name}.sh") for name in ("slurm", "pbs", "mpiexec")],
)
def test_pages_show_the_scripts_verbatim(page: str, name: str) -> None:
    assert f"\n```sh\n{(EXAMPLES / name).read_text()}```\n" in (REPOSITORY / page).read_text()


@pytest.mark.parametrize(
    ("name", "option", "hosts"),
    [
        ("hydra", "-f", "localhost:3\n"),
        ("hydra", "-machinefile", "localhost\n" * 3),
        ("open_mpi", "--hostfile", "localhost slots=3\n"),
        ("open_mpi", "-machinefile", "localhost\n" * 3),
    ],
)
def test_documented_hostfiles_start_three_ranks(
    launchers: Launchers, area: Path, name: str, option: str, hosts: str
) -> None:
    """As docs/operations/batch.md has it."""
    desk = Desk(area, launchers.line(name, 1)[0], files=1)
    (area / "hosts").write_text(hosts)
    with desk.started("mpiexec", option, "hosts", "echo", "rank") as run:
        assert run.process.communicate(timeout=60)[0] == b"rank\n" * 3
