"""The system calls of a copy under strace: how items are opened and created, and in which order their metadata is set.

These tests cover what no attack can show: flags that only matter for terminals, and permissions that are set too early.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import succeed
from tests.support.faults import require_strace
from tests.support.traces import whole_lines
from tests.support.users import NOBODY, require_root

CALLS = "openat,openat2,mkdirat,mknodat,fchown,fchmod,fchownat,fchmodat,chown,lchown,chmod,renameat,renameat2"
LINE = re.compile(r"^\d+ +(\w+)\((.*)\) += (-?\d+)(?:<(.*)>)?(?: .*)?$")
MIB = 1 << 20


class Call(NamedTuple):
    """A successful call. ``text`` are its arguments, with paths of descriptors; ``opened`` is the path of a new
    descriptor."""

    name: str
    text: str
    opened: str


@pytest.fixture
def calls(area: Path) -> list[Call]:
    """The calls that root makes to copy the tree of another user into a directory of that user, where a part of it
    exists."""
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
    for path in (target, target / "inner"):  # a right mode is not set again, nor is a right owner
        path.chmod(0o755)
    os.chown(target / "inner", 0, 0)
    log = area / "log"
    wrap = ["strace", "-f", "-qq", "-y", "-s", "200", "-o", log, "-e", f"trace={CALLS}"]
    succeed("-n", "1", f"{source}/", target, wrap=wrap)
    found = map(LINE.match, whole_lines(log))
    return [
        Call(match[1], match[2], match[4] or "")
        for match in found
        if match and int(match[3]) >= 0 and str(area) in match[2]
    ]


def test_sources_are_opened_without_following_links_or_waiting(calls: list[Call]) -> None:
    opened = [call.text for call in calls if call.name == "openat" and "/source" in call.opened]
    files = [text for text in opened if "O_DIRECTORY" not in text and "O_PATH" not in text]
    assert len(files) >= 4
    for text in files:
        assert {"O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_NOATIME"} <= set(re.findall(r"O_\w+", text)), text
    directories = [text for text in opened if "O_DIRECTORY" in text and "AT_FDCWD" not in text]
    assert len(directories) >= 2
    for text in directories:
        assert {"O_NOFOLLOW", "O_NOATIME"} <= set(re.findall(r"O_\w+", text)), text


def test_targets_are_created_exclusively_with_private_modes(calls: list[Call]) -> None:
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


def test_owner_is_set_before_mode_and_directories_are_finished_last(calls: list[Call]) -> None:
    metadata_calls = [call for call in calls if call.name in ("fchown", "fchmod")]
    paths = [re.findall(r"<(.*?)>", call.text)[0] for call in metadata_calls]
    for path in set(paths):
        names = [call.name for call, at in zip(metadata_calls, paths, strict=True) if at == path]
        assert names == ["fchown", "fchmod"], (path, names)
    directories = [index for index, path in enumerate(paths) if path.endswith(("/inner", "/new", "/target"))]
    assert len(directories) == 6
    assert min(directories) > max(set(range(len(paths))) - set(directories))
