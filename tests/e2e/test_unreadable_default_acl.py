"""A default ACL in DST that denies the owner the permissions needed while files and directories are written."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command import succeed
from tests.support.files import noise
from tests.support.filesystems import mounted
from tests.support.oracle import differences
from tests.support.users import NOBODY, require_root


@pytest.mark.parametrize("rights", ["r-x", "---"])
@pytest.mark.parametrize("user", [None, NOBODY])
def test_restrictive_default_acl_of_the_target_does_not_hinder_the_copy(
    area: Path, user: int | None, rights: str
) -> None:
    require_root("mount a file system with ACLs")
    if not shutil.which("setfacl"):
        pytest.skip("there is no setfacl here")
    area.chmod(0o755)
    (area / "disk").mkdir()
    with mounted("ext4", area / "disk", size=128 << 20) as disk:
        source = disk / "source"
        (source / "inner").mkdir(parents=True)
        for name in ("large", "inner/large"):
            (source / name).write_bytes(noise(5 << 20))
        (source / "inner" / "small").write_bytes(b"small")
        for number, path in enumerate([source, *source.rglob("*")]):
            os.chown(path, NOBODY, NOBODY)
            os.utime(path, ns=(1_600_000_000_000_000_000 + number, 1_600_000_000_000_000_000 + number))
        for name, words in (("into", [f"{source}/"]), ("around", ["-T", source])):
            target = disk / name
            target.mkdir()
            os.chown(target, NOBODY, NOBODY)
            subprocess.run(["setfacl", "-m", f"d:u::{rights},d:g::r-x,d:o::---,d:u:1:rwx", target], check=True)
            copy = target if name == "into" else target / "copy"
            state = {"XDG_STATE_HOME": str(disk / f"state-{name}")}
            os.mkdir(disk / f"state-{name}")
            os.chown(disk / f"state-{name}", user or 0, 0)
            succeed("--chunk-size", "1M", "--block-size", "64K", *words, copy, ranks=3, user=user, env=state)
            assert differences(source, copy) == []
