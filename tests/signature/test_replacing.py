"""The mode of output files: it follows the user's umask, not the one that the process has while it copies."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pcopy.signature.algorithms import digest_algorithm_named
from pcopy.signature.manifest import ManifestWriter
from pcopy.signature.replacing import replacing_output_file


@pytest.fixture
def private() -> Iterator[None]:
    """Set a umask with which new files are private."""
    before = os.umask(0o077)
    yield
    assert os.umask(before) == 0o077


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.usefixtures("private")
@pytest.mark.parametrize(("umask", "wanted"), [(None, 0o600), (0o022, 0o644), (0o002, 0o664), (0o777, 0), (0, 0o666)])
def test_modes(tmp_path: Path, umask: int | None, wanted: int) -> None:
    (tmp_path / "old").touch(0o640)
    for name in ("old", "new"):
        with replacing_output_file(tmp_path / name, umask) as stream:
            (temporary,) = tmp_path.glob(".pcopy-*")
            assert mode(temporary) == wanted
            stream.write(b"contents")
        assert mode(tmp_path / name) == wanted
    with ManifestWriter(tmp_path / "manifest", digest_algorithm_named("xxh3-128"), 4 << 20, umask):
        pass
    assert mode(tmp_path / "manifest") == wanted


@pytest.mark.usefixtures("private")
def test_default_acl_restricts_the_mode_of_an_output_file(area: Path) -> None:
    """The umask has no effect there, as for any other program."""
    (area / "shared").mkdir()
    subprocess.run(["setfacl", "-d", "-m", "u::rwx,g::r-x,o::---", area / "shared"], check=True)
    with replacing_output_file(area / "shared/file", 0o002):
        pass
    assert mode(area / "shared/file") == 0o640
