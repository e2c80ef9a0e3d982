"""Mode expressions have the same effect as in chmod(1)."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pcopy.fsio.modes import mode_after_changes, parse_mode

EXPRESSIONS = (
    *(
        "0",
        "7",
        "644",
        "0644",
        "00644",
        "755",
        "0755",
        "00755",
        "2755",
        "02755",
        "4711",
        "1777",
        "7777",
        "6000",
        "00000",
    ),
    *("u+rwX,go-w", "a=rX", "u=g", "g=u,o=", "go=u-w", "u+s", "g+s", "ug+s", "+t", "o+t", "a+t", "u+t", "u=rws", "g=s"),
    *(
        "=",
        "+",
        "a=",
        "u=",
        "+x",
        "+w",
        "-r",
        "-w",
        "=r",
        "=rX",
        "+X",
        "a+X",
        "u-x+X",
        "u+x-w=rX",
        "a-st",
        "ugo+rwxXst",
    ),
    *("u=rwx,g=rx,o=r,u+s", "o=g", "g+u", "o-u", "g-o", "a=u", "=u", "+g", "-o", "u+g-o", "=s", "-s", "-t", "=t"),
    *("+0111", "-022", "=0750", "=02750", "-06000", "uuu+r", "aug+r"),
)
MODES = [*Random(0).sample(range(0o10000), 120), 0, 0o7777, 0o644, 0o755, 0o2755, 0o4755]


@pytest.fixture(scope="module")
def items(session_scratch: Path) -> Iterator[Path]:
    """A file and a directory with each of several modes."""
    place = session_scratch / "modes"
    place.mkdir()
    for number, _ in enumerate(MODES):
        (place / f"f{number}").touch()
        (place / f"d{number}").mkdir()
    yield place
    subprocess.run(["rm", "-rf", place], check=True)


def compare(items: Path, mode: str, umask: int) -> None:
    names = [f"{kind}{number}" for number, _ in enumerate(MODES) for kind in "fd"]
    before = []
    for name in names:
        os.chmod(items / name, MODES[int(name[1:])])
        before.append((items / name).stat().st_mode)
    # -f suppresses the warning about a mode that begins with "-" and of which the umask keeps some bits
    subprocess.run(["chmod", "-f", "--", mode, *names], cwd=items, umask=umask, check=False)
    actions = parse_mode(mode)
    for name, was in zip(names, before, strict=True):
        expected = stat.S_IMODE((items / name).stat().st_mode)
        assert f"{mode_after_changes(was, actions, umask):o}" == f"{expected:o}", f"{mode} of {name}, which was {was:o}"


@pytest.mark.parametrize("mode", EXPRESSIONS)
def test_modes_equal_those_of_chmod(items: Path, mode: str) -> None:
    compare(items, mode, 0o027)


def clauses() -> st.SearchStrategy[str]:
    permissions = st.one_of(st.sampled_from("ugo"), st.text("rwxXst", max_size=3))
    actions = st.lists(st.tuples(st.sampled_from("+-="), permissions).map("".join), min_size=1, max_size=2).map("".join)
    return st.tuples(st.text("ugoa", max_size=2), actions).map("".join)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(clauses(), min_size=1, max_size=3).map(",".join), st.sampled_from((0, 0o022, 0o077, 0o777)))
def test_random_modes_match_chmod(items: Path, mode: str, umask: int) -> None:
    compare(items, mode, umask)


@pytest.mark.parametrize(
    "text", ["", ",", "u", "rwx", "u+r,", "8", "10000", "u+q", "u+gx", "u+0755", "a=08", "0x7", " 7", "u +r", "=10000"]
)
def test_invalid_mode_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert subprocess.run(["chmod", "--", text, tmp_path / "file"], capture_output=True, check=False).returncode != 0
    with pytest.raises(ValueError, match=r".*"):
        parse_mode(text)
