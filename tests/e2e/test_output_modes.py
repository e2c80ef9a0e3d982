"""Signatures, manifests and errors files get the mode that the umask gives, also in a resumed job."""

from __future__ import annotations

import signal
import stat
from pathlib import Path

import pytest

from tests.support.command import Argument, pcopy, pverify, show, succeed
from tests.support.files import noise
from tests.support.held import held

OUTPUTS = ("signature", "manifest", "errors")


@pytest.fixture
def source(area: Path) -> Path:
    (area / "source").mkdir()
    (area / "source/file").write_bytes(noise(6 << 20))
    return area / "source"


def options(area: Path) -> list[Argument]:
    return [word for name in OUTPUTS for word in (f"--{name}", area / name)]


def modes(area: Path) -> set[int]:
    return {stat.S_IMODE((area / name).stat().st_mode) for name in OUTPUTS}


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_output_files_have_the_mode_of_the_umask(area: Path, source: Path, umask: int) -> None:
    succeed(*options(area), source, area / "copy", umask=umask, ranks=2)
    assert modes(area) == {0o666 & ~umask}


def test_replaced_output_file_keeps_its_mode(area: Path, source: Path) -> None:
    for name in OUTPUTS:
        (area / name).touch(0o644)
    succeed(*options(area), source, area / "copy")
    assert modes(area) == {0o644}


def test_output_files_have_the_mode_of_the_umask_under_a_launcher(area: Path, source: Path) -> None:
    succeed(*options(area), source, area / "copy", ranks=2, launcher="mpi", umask=0o027)
    assert modes(area) == {0o640}
    run = pverify("--create", area / "created", source, ranks=2, launcher="mpi", umask=0o027)
    assert run.returncode == 0, show(run)
    assert stat.S_IMODE((area / "created").stat().st_mode) == 0o640


def test_resumed_job_uses_the_umask_of_the_first_run(area: Path, source: Path) -> None:
    job = ("--checkpoint", area / "job")
    with held(area / "log", *job, *options(area), source, area / "copy", ranks=2) as run:
        run.run.send_signal(signal.SIGTERM)
        ended = run.go_on()
    assert ended.returncode == 75, show(ended)
    errors = [word for name, word in zip(OUTPUTS, options(area)[1::2], strict=True) if name == "errors"]
    again = pcopy(*[word for path in errors for word in ("--errors", path)], "--resume", area / "job", umask=0o077)
    assert again.returncode == 0, show(again)
    assert modes(area) == {0o644}
