"""What a silent rank is said to do: words and a path for every task that can take long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pcopy.engine.task import Task
from pcopy.fsio.identity import Identity
from pcopy.fsio.source import Version
from pcopy.tasks.codec import encode
from pcopy.tasks.job import Options
from pcopy.tasks.read_values import Contents, ReadChunk, ReadItems, SplitRead, VerifyItems, VerifyLinks
from pcopy.tasks.sign_values import DigestLevel, ReadManifest, WriteManifest
from pcopy.tasks.values import Known, LinkGroup, Place
from pcopy.tasks.whereabouts import whereabouts
from tests.tasks.one_rank import root_of, surroundings

PLACE = Place(0, b"sub", Identity(0, 1), Identity(0, 2), False, False)
KNOWN = Known(b"f", 3, b"digest", Version(1, 3, 0, 0))
CONTENTS = Contents(PLACE, b"large", KNOWN, False, 0, 3, 0, b"\0")
GROUP = LinkGroup(0, 1, 3, ((PLACE, b"one"), (PLACE, b"two")), 0)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (ReadItems(PLACE, b"", b"", b"", 0, 0), "reading files of SOURCE/sub"),
        (VerifyItems(PLACE, b"", b"", b"", b"", b"", b"", 0), "reading back the copies of SOURCE/sub"),
        (VerifyLinks(GROUP, 1, KNOWN, 3, 0, b"\0"), "reading back the copies of SOURCE/sub/one"),
        (SplitRead(CONTENTS), "reading SOURCE/sub/large"),
        (ReadManifest(), "reading the manifest"),
        (DigestLevel(3), "digesting directories"),
        (WriteManifest(), "writing the manifest"),
    ],
)
def test_in_words(area: Path, task: Any, told: str) -> None:
    source, target = area / "source", area / "target"
    source.mkdir()
    target.mkdir()
    with surroundings([root_of(source, target)], Options(hash="xxh3-128")) as (context, _):
        assert whereabouts(Task((1, 0, 1), 0, encode(task), 0), context) == told.replace("SOURCE", str(source))


def test_a_part_of_a_file(area: Path) -> None:
    with surroundings([root_of(area, area)], Options(hash="xxh3-128")) as (context, _):
        names = dict.fromkeys(ReadChunk._fields, 0)
        task = ReadChunk(**{**names, "contents": CONTENTS})  # type: ignore[arg-type]
        assert whereabouts(Task((1, 0, 1), 0, encode(task), 0), context) == f"reading a part of {area}/sub/large"
