"""A copy of the home directory: the job directory lies in the source, appears while it is copied, and is removed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.chaos.unfinished import stopped
from tests.support.command import succeed, summary
from tests.support.oracle import differences

FILES, DIRECTORIES = 40, 40


@pytest.fixture
def home(area: Path) -> Path:
    for number in range(DIRECTORIES):
        directory = area / f"home/many/{number}"
        directory.mkdir(parents=True)
        for file in range(FILES):
            (directory / str(file)).write_text(str(file))
    (area / "home/.local/state/pcopy").mkdir(parents=True)
    (area / "home/.local/state/pcopy").chmod(0o700)
    (area / "home/.local/state/other").write_text("kept")
    (area / "state").symlink_to("home/.local/state")
    return area / "home"


ITEMS = DIRECTORIES * (FILES + 1) + 6


@pytest.mark.parametrize("number", [0, signal.SIGTERM, signal.SIGKILL])
def test_job_directory_inside_the_source_is_not_copied(area: Path, home: Path, number: int) -> None:
    env = {"XDG_STATE_HOME": str(area / "state")}
    words = ("--verify", "--signature", area / "sig")
    if number:
        stopped(area, env, *words, home, area / "copy", ranks=2, number=number)
        run = succeed("--json", "--resume", ranks=2, env=env)
    else:
        run = succeed("--json", "--checkpoint-interval", "0.02", *words, home, area / "copy", ranks=1, env=env)
    assert summary(run)["found"] == summary(run)["copied"] == ITEMS
    assert [line for line in differences(home, area / "copy") if ".local/state/pcopy" not in line] == []
    assert list((area / "copy/.local/state/pcopy").iterdir()) == []
    succeed("-q", area / "sig", home, ranks=2, program="pverify")
    succeed("-q", area / "sig", area / "copy", ranks=2, program="pverify")
