"""A real Slurm on this machine: steps, batch scripts, and shells in a step."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from tests.launch.launchers import SLURM, Launchers, reported
from tests.support.command import Argument, Completed, command, show, summary
from tests.support.oracle import differences
from tests.support.processes import wait_until


def test_four_tasks_with_pmi2_are_one_job(launchers: Launchers, area: Path, source: Path) -> None:
    run = launchers.run("pmi2", 4, "--json", "-q", source, area / "copy")
    assert summary(run)["ranks"] == 4, show(run)
    assert reported(run) == []
    assert differences(source, area / "copy") == []


def test_step_of_one_task_forks_the_requested_ranks(launchers: Launchers, area: Path, source: Path) -> None:
    """Such a step is what ``srun --pty`` gives to a shell."""
    for name in ("none", "pmi2"):
        run = launchers.run(name, 1, "--json", "-q", "-n", "3", source, area / name)
        assert summary(run)["ranks"] == 3, show(run)
        assert differences(source, area / name) == []


def test_batch_script_without_srun_forks_ranks(launchers: Launchers, area: Path, source: Path) -> None:
    """It has SLURM_NTASKS=4 and SLURM_PROCID=0, and is no step."""
    launchers.line("none", 1)
    line, environment = command("--json", "-q", "-n", "2", source, area / "copy")
    script = area / "script"
    script.write_text(f"#!/bin/sh\necho $SLURM_NTASKS $SLURM_PROCID >&2\nexec {shlex.join(map(os.fsdecode, line))}\n")
    out, err = area / "out", area / "err"
    batch: list[Argument] = ["sbatch", "--quiet", "-n", "4", "-o", out, "-e", err, script]
    subprocess.run(batch, check=True, env={**environment, **launchers.environment()}, capture_output=True)
    assert wait_until(lambda: out.exists() and out.read_bytes().endswith(b"\n"), 60)
    run: Completed = subprocess.CompletedProcess(batch, 0, out.read_bytes(), err.read_bytes())
    assert run.stderr.startswith(b"4 0\n"), show(run)
    assert summary(run)["ranks"] == 2
    assert differences(source, area / "copy") == []


def test_slurm_script_starts_once_and_stops_all_daemons(launchers: Launchers) -> None:
    launchers.line("none", 1)
    line = ["sh", "-c", f'd=$(mktemp -d /tmp/pcopy-slurm-XXXXXX) && {SLURM} start $d && echo "$d"']
    directory = subprocess.run(line, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    try:
        pids = {name: Path(directory, f"{name}.pid").read_text() for name in ("munged", "slurmctld", "slurmd")}
        again = subprocess.run([SLURM, "start", directory], check=True, capture_output=True, text=True)
        assert again.stdout == f"export SLURM_CONF='{directory}/slurm.conf'\n"
        assert pids == {name: Path(directory, f"{name}.pid").read_text() for name in pids}
    finally:
        subprocess.run([SLURM, "stop", directory], check=True)
    for pid in pids.values():
        status = Path(f"/proc/{pid.strip()}/status")
        assert not status.exists() or "\nState:\tZ" in status.read_text()
    subprocess.run(["rm", "-rf", directory], check=True)
