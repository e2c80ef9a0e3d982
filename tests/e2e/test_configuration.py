"""Configuration files in complete runs: in /etc, on other hosts, and for resumed jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.command import Completed, mpiexec, pcopy, pverify, show
from tests.support.oracle import changes, differences, snapshot
from tests.support.users import NOBODY, require_root

OTHER_FILE = """
[ "${PMI_RANK-0}" = 0 ] || export XDG_CONFIG_HOME="$OTHER"
exec "$@"
"""


def assert_refused(run: Completed, text: str) -> None:
    assert run.returncode == 2, show(run)
    assert run.stdout == b"", show(run)
    assert run.stderr.decode().startswith(f"pcopy: {text}"), show(run)
    assert run.stderr.count(b"\n") == 1, show(run)


def write_configuration(directory: Path, text: str) -> dict[str, str]:
    """Write a user's configuration file to ``directory``; return the environment that selects it."""
    directory.mkdir(exist_ok=True)
    (directory / "pcopy.yaml").write_text(text)
    return {"XDG_CONFIG_HOME": str(directory)}


@pytest.fixture
def source(area: Path) -> Path:
    source = area / "source"
    (source / "sub").mkdir(parents=True)
    (source / "one").write_text("one\n")
    (source / "sub/two").write_text("two\n" * 1000)
    return source


def test_configuration_in_etc_is_used(area: Path, source: Path) -> None:
    require_root("mount")
    (area / "etc").mkdir()
    (area / "etc/pcopy.yaml").write_text("json: true\nranks: 3\n")
    mount = f'mount -t overlay -o lowerdir={area}/etc:/etc overlay /etc && exec "$@"'
    run = pcopy(source, area / "copy", wrap=["unshare", "--mount", "sh", "-c", mount, "sh"])
    assert run.returncode == 0, show(run)
    assert json.loads(run.stdout)["ranks"] == 3
    assert differences(source, area / "copy") == []


def test_only_configuration_of_rank_0_is_used_under_mpi(area: Path, source: Path) -> None:
    """Other ranks may have another file, even an invalid one. The launcher determines the number of ranks."""
    env = write_configuration(area / "user", "json: true\nranks: 7\nverify: true\nchunk-size: 1M\n")
    env["OTHER"] = write_configuration(area / "other", "nonsense: [\n")["XDG_CONFIG_HOME"]
    wrap = [mpiexec(), "-n", "3", "sh", "-c", OTHER_FILE, "sh"]
    run = pcopy(source, area / "copy", wrap=wrap, env=env)
    assert run.returncode == 0, show(run)
    assert json.loads(run.stdout)["ranks"] == 3
    assert differences(source, area / "copy") == []
    run = pcopy("--jobs", wrap=wrap, env=env)
    assert run.returncode == 0, show(run)
    run = pcopy("--show-config", wrap=wrap, env=env)
    assert run.returncode == 0, show(run)
    assert run.stdout.count(b"chunk-size: 1M  # ") == 1
    assert b"\nranks: 7" not in run.stdout


def test_verbose_run_prints_options_set_by_files(area: Path, source: Path) -> None:
    env = write_configuration(area / "user", "ranks: 1\n\nexclude: [sub]\nfsync: true\n")
    run = pcopy("-v", "--fsync", source, area / "copy", env=env)
    assert run.returncode == 0, show(run)
    file = f"{area}/user/pcopy.yaml"
    expected = f"pcopy: options set by configuration files: ranks ({file}:1), exclude ({file}:3)"
    assert run.stderr.decode().splitlines()[0] == expected
    assert sorted(os.listdir(area / "copy")) == ["one"]
    assert pcopy("-T", source, area / "copy", env=env).stderr == b""


def test_unreadable_file_is_refused(area: Path, source: Path) -> None:
    require_root("hide a directory from another user")
    env = write_configuration(area / "user", "ranks: 2\n")
    (area / "open").mkdir()
    (area / "open").chmod(0o777)
    (area / "user").chmod(0o700)
    before = snapshot(area)
    run = pcopy(source, area / "open/copy", env=env, user=NOBODY)
    assert_refused(
        run, f"{area}/user/pcopy.yaml: the configuration cannot be read: Permission denied; remove the cause"
    )
    assert changes(before, snapshot(area)) == []


def test_invalid_configuration_is_refused_and_changes_nothing(area: Path, source: Path) -> None:
    env = write_configuration(area / "user", "ranks: 2\nexisting: never\n")
    for run in (pcopy(source, area / "copy", env=env), pcopy("--jobs", env=env), pcopy("--show-config", env=env)):
        assert_refused(run, f"{area}/user/pcopy.yaml:2: existing: never: not one of replace")
    run = pverify(source, source, env=env)  # pverify has no such option
    assert run.returncode == 0, show(run)
    assert sorted(os.listdir(area)) == ["source", "user"]


def test_resumed_job_ignores_a_changed_configuration(area: Path, source: Path) -> None:
    require_root("hide a file from another user")
    (area / "open").mkdir()
    (area / "open").chmod(0o777)
    (source / "one").chmod(0o600)
    env = write_configuration(area / "user", "checksum: true\nmax-errors: 3\n") | {
        "XDG_STATE_HOME": str(area / "open/state")
    }
    run = pcopy(source, area / "open/copy", env=env, user=NOBODY)
    assert run.returncode == 1, show(run)
    (source / "one").chmod(0o644)
    write_configuration(
        area / "user", "existing: fail\nverify: true\nhash: none\ncheckpoint: none\nno-sync: true\njson: true\n"
    )
    run = pcopy("--resume", env=env, user=NOBODY)
    assert run.returncode == 0, show(run)
    assert json.loads(run.stdout)["failed"] == 0
    assert (area / "open/copy/one").read_text() == "one\n"
    assert os.listdir(area / "open/state/pcopy") == []
