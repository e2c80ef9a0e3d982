"""The same command again copies into the copy that the first run has made, as cp does; a notice says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import pcopy, show


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "source/below").mkdir(parents=True)
    (tmp_path / "source/a file").write_bytes(b"text")
    (tmp_path / "other").mkdir()
    return tmp_path


def notices(place: Path, *words: str) -> list[str]:
    run = pcopy(*words, cwd=place)
    assert run.returncode == 0, show(run)
    return run.stderr.decode().splitlines()


def test_copy_into_an_older_copy_is_mentioned(place: Path) -> None:
    assert notices(place, "source", "copy") == []
    assert notices(place, "source", "copy") == [
        "pcopy: copy has the names of source already: is it an older copy? To copy to copy itself, write source/ copy"
    ]
    assert (place / "copy/source/a file").read_bytes() == b"text"
    assert notices(place, "source", "copy") == []  # copy/source is updated, which the first line of output says


@pytest.mark.parametrize(
    "words",
    [
        ("source/", "copy"),
        ("-T", "source", "copy"),
        ("source", "other"),
        ("source/a file", "copy"),
        ("source", "other", "copy"),
        ("source", "copy/new"),
        ("-q", "source", "copy"),
    ],
)
def test_other_copies_print_no_notice(place: Path, words: tuple[str, ...]) -> None:
    notices(place, "source", "copy")
    assert notices(place, *words) == []


def test_directory_with_other_names_is_no_older_copy(place: Path) -> None:
    notices(place, "source", "copy")
    (place / "source/new").touch()
    assert notices(place, "source", "copy") == []
    (place / "empty").mkdir()
    assert notices(place, "empty", "copy") == []
