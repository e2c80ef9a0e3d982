"""Two hosts, by namespaces: MPICH over TCP between them, one file system that both mount, and one of them is lost."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launch.examples import EXAMPLES, Desk
from tests.launch.launchers import Launchers, ranks_of
from tests.support.command import REPOSITORY, Argument
from tests.support.hosts import Hosts, hosts
from tests.support.oracle import differences
from tests.support.processes import HANGS, Run, wait_until

RANKS = ("h1", "h1", "h2", "h2")
"""The host of each."""
OFTEN = ("--checkpoint-interval=0.3", "--progress=none")
FILES = 300
"""On FUSE each of them is synced."""
GRACE = HANGS


class Cluster:
    """The hosts, and a desk whose mpiexec starts ranks on them from ``login``."""

    def __init__(self, desk: Desk, both: Hosts) -> None:
        self.desk = desk
        self.hosts = both
        self.environment = {**desk.environment, "HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(both.remote())}

    @contextmanager
    def copying(self, ranks: Sequence[str] = RANKS) -> Iterator[Run]:
        desk = self.desk
        (desk.area / "hosts").write_text("".join(f"{host}\n" for host in ranks))
        line: list[Argument] = [EXAMPLES / "mpiexec.sh", "hosts", f"{desk.source}/", desk.copy]
        with desk.started(*self.hosts.login.enter(), *line, env=self.environment) as run:
            yield run

    @contextmanager
    def resumed(self, host: str) -> Iterator[Run]:
        """By this host alone."""
        with self.desk.started(*self.hosts[host].enter(), "pcopy", "--resume", self.desk.job) as run:
            yield run

    def await_all_ranks(self, run: Run) -> None:
        """Until each has written what some files hold, on the host where it belongs, since the first files came."""
        assert wait_until(self.desk.copied, 60), "nothing is copied"
        ranks = ranks_of(run)
        before = {pid: written(pid) for pid in ranks.values()}
        assert list(RANKS) == [self.host_of(ranks[rank]) for rank in range(len(RANKS))]
        assert wait_until(lambda: all(written(pid) > before[pid] + 10_000 for pid in before), 60)

    def host_of(self, pid: int) -> str:
        (name,) = (name for name in ("h1", "h2") if self.hosts[name].has(pid))
        return name


@contextmanager
def cluster(launchers: Launchers, area: Path, place: Path, *, shared: bool = True, **slow: object) -> Iterator[Cluster]:
    desk = Desk(area, launchers.line("hydra", 1)[0], **slow)  # type: ignore[arg-type]
    with hosts(place, area, shared=shared) as both:
        yield Cluster(desk, both)


def written(pid: int) -> int:
    """Bytes that a process has written, to files and elsewhere."""
    (count,) = re.findall(r"^wchar: (\d+)$", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)
    return int(count)


def output_of_interrupted(run: Run) -> str:
    """Return what the launcher still writes until it ends.

    Hydra sometimes waits for its proxy on a host that is cut off ("assert (!closed) failed"): it is killed then, as a
    person would do.
    """
    output = b""
    for _ in range(4):
        try:
            return run.process.communicate(timeout=GRACE / 4)[0].decode()
        except subprocess.TimeoutExpired as error:
            output = bytes(error.output or b"")
        if b"assert (!closed) failed" in output:
            run.process.kill()
            run.process.wait(GRACE)
            return output.decode()
    pytest.fail(f"the launcher does not end: {output!r}")


def test_dead_host_ends_the_job_and_the_other_host_resumes_it(launchers: Launchers, area: Path, tmp_path: Path) -> None:
    with cluster(launchers, area, tmp_path, files=FILES, milliseconds=60, options=OFTEN) as both:
        desk = both.desk
        with both.copying() as run:
            both.await_all_ranks(run)
            assert run.process.stdout is not None
            advice = next(line for line in iter(run.process.stdout.readline, b"") if b"--resume" in line)
            assert advice == f"pcopy: if ranks are lost: pcopy --resume {desk.job}\n".encode()
            before = desk.copied()
            time.sleep(1.5)  # in which more is recorded
            assert len(desk.copied()) < FILES
            both.hosts["h2"].die()
            run.process.communicate(timeout=GRACE)
            assert run.process.returncode != 0
            assert run.survivors() == []
        desk.be_quick()
        with both.resumed("h1") as run:
            log = run.process.communicate(timeout=GRACE)[0].decode()
            assert run.process.returncode == 0, log
    assert differences(desk.source, desk.copy) == []
    after = desk.copied()
    assert any(after[path] == inode for path, inode in before.items()), "all was copied again"
    assert not desk.job.exists()


def test_unreachable_host_is_reported_and_waited_for(launchers: Launchers, area: Path, tmp_path: Path) -> None:
    """It has recorded nothing yet. Its ranks may still write: so nobody goes on with the job before they have ended."""
    wrap = [sys.executable, f"{REPOSITORY}/tests/support/impatient.py", "0.2,30,1.5,2"]
    with cluster(
        launchers, area, tmp_path, wrap=wrap, files=FILES, milliseconds=60, options=["--progress=none"]
    ) as both:
        desk = both.desk
        with both.copying() as run:
            both.await_all_ranks(run)
            both.hosts.cut("h2")
            assert run.process.stdout is not None
            said = ""
            for line in iter(run.process.stdout.readline, b""):
                said += line.decode()
                if said.count("has not answered") == 2:
                    break
            run.process.send_signal(signal.SIGUSR1)
            desk.be_quick()  # some time before: hosts remember what is there for a second
            time.sleep(3)  # twice what a rank that hangs would take to say so
            assert run.process.poll() is None
            run.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            run.process.send_signal(signal.SIGINT)
            said += output_of_interrupted(run)
            assert run.process.returncode != 0
            lines = re.findall(r"^pcopy: (rank \d on h\d has .*) for .*; the job waits$", said, re.MULTILINE)
            assert sorted(set(lines)) == ["rank 2 on h2 has not answered", "rank 3 on h2 has not answered"], said
            with both.resumed("h1") as early:
                refused = early.process.communicate(timeout=GRACE)[0].decode()
                assert early.process.returncode == 2
                assert re.search(r"rank [23] on h2 .* still work", refused), refused
            both.hosts["h2"].die()
            with both.resumed("h1") as late:
                log = late.process.communicate(timeout=GRACE)[0].decode()
                assert late.process.returncode == 0, log
    assert differences(desk.source, desk.copy) == []


def test_different_file_system_at_dst_of_one_host_is_refused(launchers: Launchers, area: Path, tmp_path: Path) -> None:
    with cluster(launchers, area, tmp_path, files=6) as both:
        desk = both.desk
        desk.copy.mkdir()
        both.hosts["h2"].run("mount", "-t", "tmpfs", "none", desk.copy)
        assert_refused(both, f"{desk.copy}: is not the same directory on h2")
        assert list(desk.copy.iterdir()) == []


def test_hosts_without_a_shared_file_system_are_refused(launchers: Launchers, area: Path, tmp_path: Path) -> None:
    """They have the same under the same names, but in memory."""
    with cluster(launchers, area, tmp_path, files=6, shared=False) as both:
        assert_refused(
            both, "each host has a file system of its own here (a local disk or memory): ", "on h1: ", "on h2: "
        )
        assert not both.desk.copy.exists()


def test_nothing_is_deleted_if_a_mount_vanishes_on_one_host(launchers: Launchers, area: Path, tmp_path: Path) -> None:
    """Both hosts have mounted a directory of the shared file system below the source. Rank 0, on the first one, still
    sees it when the other one does not."""
    options = ("--mirror", "--progress=none")
    with cluster(launchers, area, tmp_path, files=60, milliseconds=60, options=options) as both:
        desk = both.desk
        point, extra = desk.source / "mount", desk.copy / "extra"
        for path in (area / "data", point, extra):
            path.mkdir(parents=True)
        (area / "data/file").write_bytes(b"content")
        for name in ("h1", "h2"):
            both.hosts[name].run("mount", "--bind", area / "data", point)
        with both.copying() as run:
            assert wait_until((desk.copy / "mount/file").exists, HANGS), "the mount is not copied"
            both.hosts["h2"].run("umount", "--lazy", point)
            log = run.process.communicate(timeout=GRACE)[0].decode()
        assert run.process.returncode == 1, log
        assert f"{point}: open: Stale file handle: on h2: not the file system that was mounted here" in log, log
        assert "nothing was deleted: 1 item has failed" in log, log
        assert extra.exists() and (desk.copy / "mount/file").exists(), log


def assert_refused(both: Cluster, *parts: str) -> None:
    """Status 2, and one line in which ``parts`` occur."""
    with both.copying(ranks=("h1", "h2")) as run:
        said = run.process.communicate(timeout=GRACE)[0].decode()
        lines = said.splitlines()
        assert len(lines) == 1, said
        assert run.process.returncode == 2
    for part in parts:
        assert part in lines[0], said
