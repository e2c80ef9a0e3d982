"""The C backend applies patterns as git does, to whole subtrees (native/filter.c)."""

from __future__ import annotations

import os
import random
import subprocess
import time
from array import array
from pathlib import Path

import pytest

from pcopy.fsio.backend.batches import ALL_LEVELS, BatchFilters
from pcopy.fsio.backend.columns import OutcomeCode
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.walk_batches import ListPathsBatch, ListPathsResult
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.walk.patterns import pattern_rules, translate_gitignore_pattern
from tests.fsio.backend_bench import BackendFactory, done

NAMES = (b"a", b"b", b"ab", b"ba", b"abc", b"aab", b"*", b".a", b"a.b", b"\xc3\xa4")
PARTS = (
    b"a", b"b", b"c", b"*", b"**", b"?", b"/", b"/", b"[ab]", b"[!a]", b"[a-b]", b"[[:alpha:]]", b"\\a", b"\\*",
    b"/**/", b"**/", b"/**", b".", b"\xc3",
)  # fmt: skip
MANY = b"*" * 3 + b"a*" * 40 + b"c"
"""A pattern for which a comparison that tries all positions of all stars would not end."""


def random_patterns(chosen: random.Random) -> list[bytes]:
    """Return some patterns that can match something."""
    patterns: list[bytes] = []
    while not patterns or chosen.random() < 0.6:
        pattern = b"".join(chosen.choices(PARTS, k=chosen.randint(1, 7)))
        pattern = b"!" * (chosen.random() < 0.3) + pattern
        try:
            translate_gitignore_pattern(pattern)
        except ValueError:
            continue
        patterns.append(pattern)
    return patterns


def listed(make_backend: BackendFactory, place: Path, patterns: list[bytes], above: bytes = b"") -> set[bytes]:
    """Return the paths of the items in and below ``top`` that the backend lists."""
    backend = make_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    directory = os.open(place, os.O_RDONLY)
    status = (place / "top").stat()
    filters = BatchFilters(pattern_rules(patterns), above)
    batch = ListPathsBatch(
        directory, b"top", array("Q", [status.st_ino]), status.st_dev, 1000, ALL_LEVELS, time.monotonic() + 60, filters,
        b"shown/",
    )  # fmt: skip
    try:
        result: ListPathsResult = done(backend, batch)
    finally:
        os.close(directory)
        backend.close()
    assert result.verdicts.codes[0] == OutcomeCode.DONE
    found = {path.removeprefix(b"shown/") for path in result.packed_paths.split(b"\0")[:-1]}
    entered = [top for top in os.walk(place / "top") if is_entered(os.path.relpath(top[0], place), found)]
    assert len(found) + result.counts.excluded == sum(len(files) + len(names) for _, names, files in entered)
    return found


def is_entered(path: str, found: set[bytes]) -> bool:
    return path == "top" or os.fsencode(path) in found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    chosen = random.Random(1)
    directories = [os.fsencode(tmp_path / "top")]
    os.mkdir(directories[0])
    for name in random.Random(2).choices(NAMES, k=60):
        path = os.path.join(chosen.choice(directories), name)
        if not os.path.lexists(path):
            os.mkdir(path)
            directories.append(path)
    for directory in directories:
        for name in NAMES:
            if not os.path.lexists(os.path.join(directory, name)):
                os.close(os.open(os.path.join(directory, name), os.O_CREAT))
    return tmp_path


@pytest.mark.parametrize("seed", range(4))
def test_patterns_select_what_git_does_not_ignore(make_backend: BackendFactory, place: Path, seed: int) -> None:
    chosen = random.Random(seed)
    subprocess.run(["git", "init", "-q", place], check=True)
    for _ in range(30):
        patterns = random_patterns(chosen)
        rules = place / ".git/rules"
        rules.write_bytes(b"\n".join(patterns) + b"\n")
        command: list[str | Path] = ["git", "-C", place, "ls-files", "-z", "--others", f"--exclude-from={rules}"]
        expected = subprocess.run(command, check=True, capture_output=True).stdout.split(b"\0")[:-1]
        asked: list[str | Path] = [
            "git",
            "-C",
            place,
            "-c",
            f"core.excludesFile={rules}",
            "check-ignore",
            "-q",
            "--no-index",
            "top",
        ]
        if subprocess.run(asked, check=False).returncode == 0:
            continue  # filters do not apply to the row itself
        found = listed(make_backend, place, patterns)
        files = {path for path in found if not os.path.isdir(place / os.fsdecode(path))}
        assert files == set(expected), patterns


def test_paths_of_patterns_begin_above_the_rows(make_backend: BackendFactory, place: Path) -> None:
    everything = listed(make_backend, place, [])
    assert listed(make_backend, place, [b"/x/y/top/a"], b"x/y/") == {
        path for path in everything if path != b"top/a" and not path.startswith(b"top/a/")
    }
    assert listed(make_backend, place, [b"/top/a"], b"x/y/") == everything


def test_many_stars_take_no_time(make_backend: BackendFactory, place: Path) -> None:
    (place / "top" / ("a" * 200)).touch()
    began = time.monotonic()
    assert listed(make_backend, place, [MANY]) == listed(make_backend, place, [])
    assert time.monotonic() - began < 20
