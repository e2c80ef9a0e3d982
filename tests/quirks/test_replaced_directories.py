"""A directory is moved away, or replaced, between its listing and each of its openings. No program misses it silently:
what it has processed is the directory as it was before or as it is now, or an error names the directory.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.support import native
from tests.support.command import Completed, pcopy, show
from tests.support.preload import preloaded

REPLACING = Path(__file__).with_name("replaced.c")
BEFORE = {"", "/f0", "/f1", "/below", "/below/f0", "/below/f1"}
"""The directory that is replaced, and what is in it."""
NOW = {"nothing": set[str](), "directory": {"", "/new"}, "late": {"", "/new"}, "file": {""}}
"""What has its name afterwards."""


def make_tree(top: Path) -> None:
    (top / "a/victim/below").mkdir(parents=True)
    (top / "b").mkdir()
    for path in ("a", "a/victim", "a/victim/below", "b"):
        for name in ("f0", "f1"):
            (top / path / name).write_text(path)


def printed(run: Completed, area: Path) -> list[str]:
    return run.stdout.decode().splitlines()


def saved(run: Completed, area: Path) -> list[str]:
    return [line["path"] for line in map(json.loads, run.stdout.splitlines()) if "path" in line]


def found(top: str) -> Callable[[Completed, Path], list[str]]:
    return lambda run, area: subprocess.check_output(["find", top], cwd=area, text=True).splitlines()


def archived(run: Completed, area: Path) -> list[str]:
    return [
        line.rstrip("/") for line in subprocess.check_output(["tar", "-tf", area / "a.tar"], text=True).splitlines()
    ]


def changed(run: Completed, area: Path) -> list[str]:
    """Return the items with the new mode, also those in the directory that was moved away."""
    paths = [*found("tree")(run, area), *found("away")(run, area)]
    done = [path for path in paths if stat.S_IMODE(os.lstat(area / path).st_mode) == 0o700]
    return [path.replace("away", "tree/a/victim") for path in done]


def signed(run: Completed, area: Path) -> list[str]:
    return (area / "manifest").read_text().split()


PROGRAMS: dict[str, tuple[tuple[str, ...], Callable[[Completed, Path], list[str]]]] = {
    "pwalk": (("tree",), printed),
    "pwalk -size": (("tree", "-size", "-9"), printed),
    "pwalk --exclude": (("--exclude", "x", "tree"), printed),
    "pwalk --json-lines": (("--json-lines", "tree"), saved),
    "pcopy": (("-T", "tree", "copy"), found("copy")),
    "pcopy -L": (("-L", "-T", "tree", "copy"), found("copy")),
    "pcopy again": (("--existing", "changed", "-T", "tree", "copy"), found("copy")),
    "psync": (("tree/", "copy/"), found("copy")),
    "pchmod": (("a=,u=rwx", "tree"), changed),
    "pchmod --exclude": (("--exclude", "x", "a=,u=rwx", "tree"), changed),
    "ptar": (("-cf", "a.tar", "-C", "tree", "."), archived),
    "pverify --create": (("--create", "signature", "--manifest", "manifest", "tree"), signed),
    "pverify": (("tree", "copy"), printed),
    "pverify --compare": (("--compare", "type,content", "tree", "copy"), printed),
}
"""Arguments, and what a run has processed."""
COMPARING = ("pverify", "pverify --compare")
WITH_COPY = ("pcopy again", "psync", *COMPARING)
WAYS = {
    "c": ("c", ()),
    "threads": ("c", ("--in-flight", "4")),
    "python": ("python", ()),
}


@pytest.mark.parametrize("how", NOW)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_directory_is_missed(area: Path, name: str, way: str, how: str) -> None:
    native.require()
    backend, words = WAYS[way]
    arguments, processed = PROGRAMS[name]
    for number in count(1):
        scene = area / str(number)
        make_tree(scene / "tree")
        if name in WITH_COPY:
            subprocess.run(["cp", "-a", "tree", "copy"], cwd=scene, check=True)
        environment = {
            **preloaded(REPLACING),
            "PCOPY_BACKEND": backend,
            "REPLACED_PARENT": str(scene / "tree/a"),
            "REPLACED_NTH": str(number),
            "REPLACED_HOW": how,
            "REPLACED_AWAY": str(scene / "away"),
            "REPLACED_COUNT": str(scene / "count"),
        }
        run = pcopy(*words, *arguments, program=name.partition(" ")[0], env=environment, cwd=scene, ranks=1)
        if not (scene / "away").exists():
            assert number > 1, "it was never opened"
            return
        assert run.returncode in (0, 1, 2), show(run)
        if run.returncode:
            assert b"victim" in run.stderr + run.stdout, show(run)
        elif name in COMPARING:
            assert number > 1, show(run)
        else:
            paths = {path.partition("a/victim")[2] for path in processed(run, scene) if "a/victim" in path}
            expected = [BEFORE, NOW[how]]
            if name == "psync":  # it has deleted what the source did not have any more
                expected.append(set() if how == "file" else BEFORE & NOW[how])
            assert paths in expected, show(run)


@pytest.mark.parametrize("how", NOW)
@pytest.mark.parametrize("way", WAYS)
def test_removal_leaves_nothing_silently(area: Path, way: str, how: str) -> None:
    native.require()
    backend, words = WAYS[way]
    make_tree(area / "tree")
    environment = {
        **preloaded(REPLACING),
        "PCOPY_BACKEND": backend,
        "REPLACED_PARENT": str(area / "tree/a"),
        "REPLACED_NTH": "1",
        "REPLACED_HOW": how,
        "REPLACED_AWAY": str(area / "away"),
        "REPLACED_COUNT": str(area / "count"),
    }
    run = pcopy(*words, "-q", "--yes", "tree", program="prm", env=environment, cwd=area, ranks=1)
    assert (area / "away").exists()
    if (area / "tree").exists():
        assert run.returncode == 1 and b"tree/a" in run.stderr, show(run)
    else:
        assert (run.returncode, run.stderr) == (0, b""), show(run)
