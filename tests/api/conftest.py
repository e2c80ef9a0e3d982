"""Fixtures of the tests of the interface for Python."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest

import pcopy
from pcopy.api import process
from tests.support.command import new_token
from tests.support.processes import PROMPT, wait_until
from tests.support.warm import TOKEN


@pytest.fixture(autouse=True)
def own_state(area: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each test has a state directory of its own, and leaves no process and no temporary file."""
    tmp_path_factory.getbasetemp()  # It is made in TMPDIR at the first call.
    token = new_token()
    for name, value in {"XDG_STATE_HOME": area / "state", "HOME": area / "home", "TMPDIR": area / "tmp"}.items():
        (area / "tmp").mkdir(exist_ok=True)
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv(TOKEN, token)
    yield
    assert wait_until(lambda: not processes_with(token), PROMPT), processes_with(token)
    assert list((area / "tmp").glob("*")) == []


def processes_with(token: str) -> list[str]:
    """Return the command lines of the other living processes whose environment has ``token``."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        process = Path("/proc", name)
        try:
            if int(name) != os.getpid() and token.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # It has ended, or belongs to another user.
            continue
    return found


PROGRESS: dict[str, Any] = {field.name: 0 for field in dataclasses.fields(pcopy.Progress) if field.default is MISSING}
PROGRESS |= {"phase": "copy", "silent": []}
"""A line of progress, as an object."""
del PROGRESS["other"]


def progress_line(elapsed: float, **more: Any) -> str:
    return json.dumps({**PROGRESS, "elapsed": elapsed, **more})


def child(area: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have the child run ``code`` instead of a program."""
    (area / "child.py").write_text(code)
    monkeypatch.setattr(process, "CHILD", str(area / "child.py"))


@pytest.fixture
def tree(area: Path) -> Path:
    """A directory with items of several types, among them a name that is not UTF-8."""
    top = area / "tree"
    (top / "inner/deep").mkdir(parents=True)
    (top / "inner/file").write_bytes(b"contents")
    (top / "inner/deep/large").write_bytes(os.urandom(300_000))
    os.link(top / "inner/file", top / "hard link")
    (top / "link").symlink_to("inner/file")
    (top / "inner/file.tmp").write_bytes(b"x" * 5000)
    with open(os.fsencode(top) + b"/\xff\xfe\n", "wb") as file:
        file.write(b"name")
    os.mkfifo(top / "fifo")
    (top / "inner").chmod(0o2750)
    os.utime(top / "inner/file", ns=(10**18 + 1, 10**18 + 7))
    return top


@pytest.fixture
def large(area: Path) -> Path:
    """A directory whose copy takes long with ``SLOWLY``."""
    (area / "large").mkdir()
    for number in range(4):
        (area / f"large/{number}").write_bytes(os.urandom(10 << 20))
    return area / "large"
