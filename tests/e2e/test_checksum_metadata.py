"""``--checksum`` does not change the metadata of files of equal content; with ``--delete`` it updates them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Argument, succeed, summary
from tests.support.files import write


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize(
    ("words", "program", "mode"),
    [
        (("--checksum",), "pcopy", 0o600),
        (("--checksum", "--delete"), "pcopy", 0o640),
        (("--checksum",), "psync", 0o640),
    ],
)
def test_metadata_of_equal_files_is_updated_only_by_delete_and_psync(
    area: Path, backend: str, words: tuple[Argument, ...], program: str, mode: int
) -> None:
    for side, permissions in (("source", 0o640), ("copy", 0o600)):
        write(area / side / "file", b"the same")
        (area / side / "file").chmod(permissions)
    env = {"PCOPY_BACKEND": backend}
    reported = summary(succeed("--json", *words, f"{area}/source/", area / "copy", program=program, env=env))
    assert (area / "copy/file").stat().st_mode & 0o777 == mode
    assert (reported["mended"], reported["bytes"]) == (mode == 0o640, 0)
