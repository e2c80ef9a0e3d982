"""``bin/install-debian-packages`` on a machine with other packages, as simulated by apt."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "bin/install-debian-packages"
STATUS = Path("/var/lib/dpkg/status")
OTHERS = ("fuse3", "libfuse3-3", "sshfs")
_KEPT = ("Package:", "Architecture:", "Version:", "Depends:", "Breaks:", "Conflicts:", "Replaces:", "Provides:")


def stanza(package: str) -> str:
    """Return the stanza of a package as if it were installed; skip the test if apt does not know it."""
    shown = subprocess.run(
        ["apt-cache", "show", "--no-all-versions", package], check=False, capture_output=True, text=True
    )
    if shown.returncode or not shown.stdout:
        pytest.skip(f"apt knows no {package} here")
    lines = [line for line in shown.stdout.splitlines() if line.startswith(_KEPT)]
    # This machine may lack dependencies of sshfs, which does not matter here.
    lines = [line for line in lines if not (package == "sshfs" and line.startswith("Depends:"))]
    rest = ["Status: install ok installed", "Maintainer: nobody", f"Description: {package}"]
    return "\n".join([*lines, *rest, *(["Depends: fuse3"] if package == "sshfs" else [])])


def wrapped(directory: Path, name: str, line: str) -> None:
    (directory / name).write_text(f'#!/bin/sh\n[ "$1" != update ] || exit 0\nexec {line} "$@"\n')
    (directory / name).chmod(0o755)


@pytest.mark.skipif(not STATUS.exists(), reason="no Debian")
def test_package_script_removes_nothing_if_another_fuse_is_installed(tmp_path: Path) -> None:
    """The installation of fuse used to remove fuse3 and thus sshfs."""
    ours = ("fuse", "bindfs", *OTHERS)
    kept = [
        text for text in STATUS.read_text().split("\n\n") if text.partition("\n")[0][len("Package: ") :] not in ours
    ]
    (tmp_path / "dpkg").mkdir()
    (tmp_path / "dpkg/status").write_text("\n\n".join([*map(str.strip, kept), *map(stanza, OTHERS)]).strip() + "\n\n")
    for name in ("updates", "info"):
        (tmp_path / "dpkg" / name).mkdir()
    (tmp_path / "bin").mkdir()
    status = f"Dir::State::status={tmp_path}/dpkg/status"
    wrapped(tmp_path / "bin", "apt-get", f"/usr/bin/apt-get -s -o {status} -o Debug::NoLocking=1")
    wrapped(tmp_path / "bin", "dpkg-query", f"/usr/bin/dpkg-query --admindir={tmp_path}/dpkg")
    wrapped(tmp_path / "bin", "sudo", "env")
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "LC_ALL": "C"}
    run = subprocess.run([SCRIPT, "tests"], check=False, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run
    steps = [line.split()[:2] for line in run.stdout.splitlines()]
    assert ["Inst", "bindfs"] in steps, run.stdout
    assert not [step for step in steps if step[:1] == ["Remv"]], run.stdout
    assert ["Inst", "fuse"] not in steps, run.stdout
