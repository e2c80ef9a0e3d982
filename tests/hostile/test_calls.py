"""The system calls of a copy, as strace sees them: how things are opened and made, and in which order they are dressed.

For what no attack can show: flags that only matter on terminals, and that nothing is opened up before its time.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import succeed
from tests.support.faults import require_strace
from tests.support.users import NOBODY, require_root

CALLS = "openat,openat2,mkdirat,mknodat,fchown,fchmod,fchownat,fchmodat,chown,lchown,chmod,renameat,renameat2"
LINE = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+)(?:<(.*)>)?(?: .*)?$")
MIB = 1 << 20


class Call(NamedTuple):
    """One that succeeded. ``text`` are its arguments, with descriptors' paths; ``opened`` is the path of a new one."""

    name: str
    text: str
    opened: str


@pytest.fixture
def calls(area: Path) -> list[Call]:
    """What root calls to copy another user's tree into a directory of his, in which a part of it is already."""
    require_root("be attacked by an ordinary user")
    require_strace()
    source, target = area / "source", area / "target"
    for path in (source, source / "inner", source / "new", target, target / "inner"):
        path.mkdir()
    (source / "small").write_bytes(b"x")
    (source / "large").write_bytes(bytes(5 * MIB))
    (source / "new/replaced").write_bytes(b"x")
    (source / "inner/replaced").write_bytes(b"x")
    (target / "inner/replaced").write_bytes(b"old")
    os.mkfifo(source / "fifo")
    for path in (source, target, *source.rglob("*"), *target.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o6775 if path.is_file() else 0o777)
    for path in (target, target / "inner"):  # a mode that is right is left alone, and so is an owner
        path.chmod(0o755)
    os.chown(target / "inner", 0, 0)
    log = area / "log"
    wrap = ["strace", "-f", "-qq", "-y", "-s", "200", "-o", log, "-e", f"trace={CALLS}"]
    succeed("-n", "1", f"{source}/", target, wrap=wrap)
    found = (LINE.match(line) for line in log.read_text(errors="replace").splitlines())
    return [
        Call(match[1], match[2], match[4] or "")
        for match in found
        if match and int(match[3]) >= 0 and str(area) in match[2]
    ]


def test_how_sources_are_opened(calls: list[Call]) -> None:
    opened = [call.text for call in calls if call.name == "openat" and "/source" in call.opened]
    files = [text for text in opened if "O_DIRECTORY" not in text and "O_PATH" not in text]
    assert len(files) >= 4
    for text in files:
        assert {"O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_NOATIME"} <= set(re.findall(r"O_\w+", text)), text
    directories = [text for text in opened if "O_DIRECTORY" in text and "AT_FDCWD" not in text]
    assert len(directories) >= 2
    for text in directories:
        assert {"O_NOFOLLOW", "O_NOATIME"} <= set(re.findall(r"O_\w+", text)), text


def test_how_targets_are_made(calls: list[Call]) -> None:
    created = [call.text for call in calls if call.name == "openat" and "O_CREAT" in call.text]
    assert len(created) >= 4
    for text in created:
        assert "O_EXCL" in text, text
        assert text.endswith("0600"), text
    for name, mode in (("mkdirat", "0700"), ("mknodat", "0600")):
        made = [call.text for call in calls if call.name == name]
        assert made
        for text in made:
            assert mode in text, text


def test_owners_come_before_modes_and_directories_last(calls: list[Call]) -> None:
    dressed = [call for call in calls if call.name in ("fchown", "fchmod")]
    paths = [re.findall(r"<(.*?)>", call.text)[0] for call in dressed]
    for path in set(paths):
        names = [call.name for call, at in zip(dressed, paths, strict=True) if at == path]
        assert names == ["fchown", "fchmod"], (path, names)
    directories = [index for index, path in enumerate(paths) if path.endswith(("/inner", "/new", "/target"))]
    assert len(directories) == 6
    assert min(directories) > max(set(range(len(paths))) - set(directories))
