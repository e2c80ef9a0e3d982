"""Hosts that don't see the same, or don't run the same, are refused before anything is touched.

A second host is made of namespaces: a rank with a name and mounts of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pcopy import __version__
from pcopy.errors import RequestRefused
from pcopy.fsio.backend.choose import backend_name
from pcopy.launch.group import RankDescription, first_ranks_of_hosts
from pcopy.launch.hosts import checked_rank_descriptions, next_rank_on_host
from tests.launch.launchers import Launchers, assert_refused, reported
from tests.support.command import BEING_WRITTEN, REPOSITORY, Argument, pcopy, show, summary
from tests.support.filesystems import mounted
from tests.support.oracle import changes, differences, snapshot
from tests.support.users import require_root

OTHER_HOST = """
if [ "${PMI_RANK-${OMPI_COMM_WORLD_RANK-}}" = 1 ]; then
    exec unshare --mount --uts sh -c 'hostname other; eval "$CHANGE"; exec "$@"' sh "$@"
fi
exec "$@"
"""


def elsewhere() -> list[str]:
    """What makes another host of rank 1, on which the shell commands of CHANGE have been run."""
    require_root("make namespaces")
    return ["sh", "-c", OTHER_HOST, "sh"]


@pytest.fixture
def twins(area: Path) -> Iterator[tuple[Path, Path]]:
    """Two file systems whose roots have the same inode number, as those of all of one kind do."""
    with mounted("tmpfs", area) as one, mounted("tmpfs", area) as other:
        assert one.stat().st_ino == other.stat().st_ino
        yield one, other


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("name", ["hydra", "open_mpi"])
def test_another_file_system_at_dst_is_refused(
    launchers: Launchers, source: Path, twins: tuple[Path, Path], name: str
) -> None:
    one, other = twins
    before = [snapshot(place) for place in twins]
    env = {"CHANGE": f"mount --bind {other} {one}"}
    run = launchers.run(name, 3, source, one, env=env, wrap=elsewhere())
    assert_refused(run, str(one), "on other")
    after = [snapshot(place) for place in twins]
    assert changes(before[1], after[1]) == []
    # A file was made and removed again; of that nothing can hide the time of the last change.
    assert [line for line in changes(before[0], after[0]) if not line.startswith("ctime ")] == []


def test_another_directory_at_dst_is_refused(launchers: Launchers, area: Path, source: Path) -> None:
    (area / "copy").mkdir()
    (area / "decoy").mkdir()
    env = {"CHANGE": f"mount --bind {area}/decoy {area}/copy"}
    run = launchers.run("hydra", 3, source, area / "copy", env=env, wrap=elsewhere())
    assert_refused(run, f"{area}/copy", "on other")
    assert os.listdir(area / "copy") == os.listdir(area / "decoy") == []


def test_source_that_is_missing_on_another_host_is_refused(launchers: Launchers, area: Path, source: Path) -> None:
    env = {"CHANGE": f"mount -t tmpfs none {source}"}
    run = launchers.run("hydra", 3, source, area / "copy", env=env, wrap=elsewhere())
    assert_refused(run, str(source), "on other")
    assert not (area / "copy").exists()


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("name", ["hydra", "open_mpi"])
def test_host_that_sees_the_same_directories_takes_part(
    launchers: Launchers, area: Path, source: Path, name: str
) -> None:
    """And the file that showed it is gone."""
    env = {"CHANGE": "true"}
    run = launchers.run(name, 3, "--json", "-q", source, area / "copy", env=env, wrap=elsewhere())
    assert summary(run)["ranks"] == 3, show(run)
    assert differences(source, area / "copy") == []
    assert sorted(os.listdir(area)) == ["copy", "source"]


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("name", ["hydra", "open_mpi"])
def test_job_directory_that_hosts_do_not_share_is_refused(
    launchers: Launchers, area: Path, source: Path, name: str
) -> None:
    """And the job that rank 0 has made there is gone."""
    (area / "jobs").mkdir()
    env = {"CHANGE": f"mount -t tmpfs none {area}/jobs"}
    run = launchers.run(name, 3, "--checkpoint", area / "jobs/job", source, area / "copy", env=env, wrap=elsewhere())
    assert_refused(run, f"{area}/jobs/job", "on other", "--checkpoint DIR")
    assert os.listdir(area / "jobs") == []
    assert not (area / "copy").exists()


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("name", ["hydra", "open_mpi"])
def test_job_directory_that_all_hosts_share_is_used(launchers: Launchers, area: Path, source: Path, name: str) -> None:
    env = {"CHANGE": "true"}
    options: list[Argument] = ["--json", "-q", "--checkpoint", area / "job"]
    run = launchers.run(name, 3, *options, source, area / "copy", env=env, wrap=elsewhere())
    assert summary(run)["ranks"] == 3, show(run)
    assert differences(source, area / "copy") == []
    assert not (area / "job").exists()


def test_read_only_dst_on_two_hosts_is_refused(launchers: Launchers, source: Path, twins: tuple[Path, Path]) -> None:
    one, _ = twins
    env = {"CHANGE": "true"}
    wrap = ["unshare", "--mount", "sh", "-c", f'mount -o remount,bind,ro {one}; exec "$@"', "sh"]
    run = launchers.run("hydra", 2, f"{source}/", one, env=env, wrap=[*wrap, *elsewhere()])
    assert_refused(run, str(one), "Read-only")


def test_another_version_on_one_rank_is_refused(launchers: Launchers, area: Path, source: Path) -> None:
    shutil.copytree(REPOSITORY / "pcopy", area / "old/pcopy", ignore=BEING_WRITTEN)
    text = (area / "old/pcopy/__init__.py").read_text()
    assert __version__ in text
    (area / "old/pcopy/__init__.py").write_text(text.replace(__version__, "0.0.1"))
    start: list[Argument] = [":", "-n", "1", "env", f"PYTHONPATH={area}/old", sys.executable, "-m", "pcopy"]
    run = pcopy(source, area / "copy", *start, source, area / "copy", wrap=launchers.line("hydra", 2))
    assert_refused(run, "rank 2", "pcopy 0.0.1", f"pcopy {__version__}")
    assert not (area / "copy").exists()


def test_other_arguments_on_one_rank_are_refused(launchers: Launchers, area: Path, source: Path) -> None:
    other: list[Argument] = [":", "-n", "1", sys.executable, "-m", "pcopy", source, area / "two"]
    run = pcopy(source, area / "one", *other, wrap=launchers.line("hydra", 1))
    assert_refused(run, "rank 1", "other arguments")
    assert not (area / "one").exists()
    assert not (area / "two").exists()


def test_different_backend_on_one_rank_is_reported(launchers: Launchers, area: Path, source: Path) -> None:
    words: list[Argument] = [source, area / "copy"]
    other: list[Argument] = [":", "-n", "1", "env", "PCOPY_BACKEND=python", sys.executable, "-m", "pcopy"]
    run = pcopy(*words, *other, *words, wrap=launchers.line("hydra", 1))
    if backend_name() == "python":
        assert not any("different backends" in line for line in reported(run)), show(run)
        return
    (line,) = (line for line in reported(run) if "different backends" in line)
    name = os.uname().nodename
    assert line.endswith(f": backend c on {name}; backend python on {name}"), line
    assert run.returncode == 0, show(run)
    assert differences(source, area / "copy") == []


def test_refusal_of_rank_0_is_reported_once_and_changes_nothing(launchers: Launchers, area: Path, source: Path) -> None:
    run = launchers.run("hydra", 3, source / "nothing", area / "copy")
    assert_refused(run, "nothing")
    assert len(reported(run)) == 1
    assert os.listdir(area) == ["source"]


def hello(
    host: str, machine: str = "", pids: str = "pid:[1]", version: str = __version__, words: str = "w"
) -> RankDescription:
    return RankDescription(version, host, machine or host, "mnt:[1]", pids, 1, words)


def test_each_host_has_a_leader_and_each_pid_namespace_a_ring() -> None:
    hellos = [hello("a"), hello("b"), hello("a"), hello("b"), hello("a"), hello("c"), hello("a", pids="pid:[2]")]
    assert first_ranks_of_hosts(hellos) == [0, 1, 5]
    assert [next_rank_on_host(hellos, rank) for rank in range(7)] == [2, 3, 4, 1, 0, None, None]


def test_rank_description_of_another_version_may_have_any_form() -> None:
    with pytest.raises(RequestRefused, match=r"rank 1 on b runs pcopy 9\.9"):
        checked_rank_descriptions([tuple(hello("a")), ("9.9", "b")])
    with pytest.raises(RequestRefused, match="other arguments"):
        checked_rank_descriptions([tuple(hello("a")), tuple(hello("a", words="x"))])
    assert checked_rank_descriptions([tuple(hello("a")), tuple(hello("b"))]) == [hello("a"), hello("b")]
