"""Damages of an archive and ways of reading it: -t, -t --signature, -x --dry-run and -x end with one status."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.archive.test_types import END, header, item, pax
from tests.support.archives import ptar
from tests.support.command import show

BAD_ACL = b"39 SCHILY.acl.default=user:nobody:what\n"
ARCHIVES = {
    "whole": (item(b"a", b"1") + header(b"b", b"1", link=b"a") + END, 0),
    "cut": (item(b"a", b"1"), 1),
    "cut in contents": (header(b"a", b"0", 4096) + b"x" * 512, 1),
    "checksum": (b"y" + item(b"a", b"1")[1:] + END, 1),
    "name leads out": (item(b"../a", b"1") + END, 1),
    "link leads out": (header(b"b", b"1", link=b"../a") + END, 1),
    "link to nothing": (header(b"b", b"1") + END, 1),
    "ACL": (pax(BAD_ACL) + header(b"d/", b"5") + END, 1),
}


@pytest.mark.parametrize("what", ARCHIVES)
def test_all_ways_of_reading_end_with_the_same_status(what: str, tmp_path: Path) -> None:
    data, status = ARCHIVES[what]
    (tmp_path / "a.tar").write_bytes(data)
    (tmp_path / "place").mkdir()
    ways = (["-t"], ["-t", "--signature", tmp_path / "sig"], ["-x", "-C", tmp_path / "place", "--dry-run"],
            ["-x", "-C", tmp_path / "place"])  # fmt: skip
    for way in ways:
        done = ptar(*way, "-f", tmp_path / "a.tar", ranks=1)
        assert done.returncode == status, (way, show(done))
