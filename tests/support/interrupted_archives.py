"""Runs of ``ptar -c`` that are killed before the archive ``a.tar`` is complete, and runs that resume them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.support.archives import ptar
from tests.support.command import Argument, show
from tests.support.faults import require_strace
from tests.support.files import same_contents

SOON = ("--resume", "--checkpoint-interval", "0.00001")
STRACE = ("strace", "-f", "-qq")
"""With ``--seccomp-bpf``, which is faster, strace 6.1 injects no signals into a process that it has started."""


def made(tree: Path, name: str, *more: Argument, ranks: int = 2, status: int = 0) -> Path:
    """Create an archive in one run and return its contents."""
    archive = tree.parent / name
    done = ptar("-c", "-q", "-f", archive, "-C", tree.parent, *more, "tree", ranks=ranks)
    assert done.returncode == status, show(done)
    return archive


def interrupt(tree: Path, *more: Argument, ranks: int, calls: int, call: str = "fsync", name: str = "a.tar") -> None:
    """Kill a rank of a run at its ``calls``-th call; each record takes two calls of fsync. The other ranks end by
    themselves.
    """
    require_strace()
    wrap = [*STRACE, "-o", "/dev/null", "-e", f"trace={call}"]
    wrap += ["-e", f"inject={call}:signal=SIGKILL:when={calls}"]
    words: list[Argument] = ["-c", "-q", *SOON, "-f", tree.parent / name, "-C", tree.parent, *more, "tree"]
    done = ptar(*words, ranks=ranks, wrap=wrap)
    assert done.returncode != 0, show(done)
    assert not (tree.parent / name).exists()
    assert left(tree.parent)


def go_on(tree: Path, *more: Argument, ranks: int, name: str = "a.tar", **options: Any) -> dict[str, Any]:
    archive = tree.parent / name
    done = ptar("-c", "--json", "--resume", "-f", archive, "-C", tree.parent, *more, "tree", ranks=ranks, **options)
    assert done.returncode == 0, show(done)
    assert left(tree.parent) == []
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def left(place: Path) -> list[str]:
    return [name for name in os.listdir(place) if name.startswith(".pcopy-")]


def assert_same(one: Path, other: Path) -> None:
    assert same_contents(one, other), f"{one} and {other} differ"


def damaged(place: Path) -> None:
    """Damage the records of the job."""
    for name in left(place):
        if name.endswith(".made"):
            data = bytearray((place / name).read_bytes())
            data[len(data) // 2] ^= 1
            (place / name).write_bytes(data)


def replaced(place: Path) -> None:
    """Replace the archive by a file without its contents, as if another run had started there."""
    (name,) = [name for name in left(place) if name.endswith(".archive")]
    size = (place / name).stat().st_size
    os.rename(place / name, place / "old")
    with open(place / name, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(b"x" * size)


def truncated(place: Path) -> None:
    (name,) = [name for name in left(place) if name.endswith(".archive")]
    os.truncate(place / name, (place / name).stat().st_size // 10)
