"""Names that the destination regards as equal: the second item fails, however often the job is resumed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.interrupted import TOTALS
from tests.chaos.unfinished import INCOMPLETE
from tests.support import loops
from tests.support.command import pcopy, show, summary
from tests.support.files import noise
from tests.support.filesystems import MAKE, make_image, mounted, unmount
from tests.support.oracle import differences
from tests.support.preload import preloaded
from tests.support.users import require_root
from tests.support.walk import temporaries

FOLDING = Path(__file__).with_name("folding.c")
PAIRS = {"file", "large", "symlink", "directory", "linked", "either", "empty"}
MIB = 1 << 20


@pytest.fixture(params=["ext4", "preloaded"])
def folding(request: pytest.FixtureRequest, session_scratch: Path, area: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory in which names are case-insensitive, and the environment needed for that."""
    require_root("mount file systems")
    if request.param == "ext4":
        (area / "disk").mkdir()
        make_image((*MAKE["ext4"], "-O", "casefold"), area / "image", 64 * MIB)
        with loops.attached(area / "image") as disk:
            if subprocess.run(["mount", disk, area / "disk"], check=False).returncode:
                pytest.skip("this kernel's ext4 can't fold case")
        try:
            (area / "disk/folding").mkdir()
            subprocess.run(["chattr", "+F", area / "disk/folding"], check=True)
            yield area / "disk/folding", {}
        finally:
            unmount(area / "disk")
    else:
        environment = preloaded(FOLDING)
        with mounted("tmpfs", session_scratch, size=64 * MIB) as place:
            yield place, {**environment, "PCOPY_TEST_FOLDS": str(place.stat().st_dev)}


def make_pairs(top: Path) -> None:
    """Create pairs of items whose names differ only in case."""
    top.mkdir(parents=True)
    for number, change in enumerate((str.lower, str.upper)):
        (top / change("file")).write_bytes(os.urandom(100 + number))
        (top / change("large")).write_bytes(noise(6 * MIB))
        (top / change("symlink")).symlink_to(f"nowhere-{number}")
        (top / change("directory")).mkdir()
        (top / change("directory") / f"{number}").write_bytes(b"%d" % number)
    (top / "linked").write_bytes(b"one inode")
    os.link(top / "linked", top / "LINKED")
    (top / "either").mkdir()
    (top / "EITHER").write_bytes(b"no directory")
    (top / "empty").symlink_to("nowhere")
    (top / "EMPTY").mkdir()
    (top / "Alone").write_bytes(b"alone")


@pytest.mark.parametrize("exists", [False, True], ids=["made", "existing"])
def test_names_that_collide_by_case_folding_fail_again_after_resume(
    area: Path, folding: tuple[Path, dict[str, str]], exists: bool
) -> None:
    place, env = folding
    env = {"XDG_STATE_HOME": str(area / "state"), **env}
    make_pairs(area / "source")
    if exists:
        (place / "copy").mkdir()
    words = ("-T", "--json", "--chunk-size", "1M", "--errors", area / "errors", area / "source", place / "copy")
    run = pcopy(*words, ranks=1, env=env)
    assert run.returncode == INCOMPLETE, show(run)
    first = summary(run)
    lines = [json.loads(line) for line in (area / "errors").read_text().splitlines()]
    assert sorted(Path(line["path"]).name.lower() for line in lines) == sorted(PAIRS), show(run)
    assert all("is taken by another item of this job" in line["message"] for line in lines), show(run)
    assert first["failed"] == len(PAIRS)
    assert len(list((place / "copy").iterdir())) == len(PAIRS) + 1
    subprocess.run(["cp", "-a", place / "copy", area / "before"], check=True)
    for ranks in (1, 2):
        run = pcopy("--resume", "--json", ranks=ranks, env=env)
        assert run.returncode == INCOMPLETE, show(run)
        again = summary(run)
        assert {key: again[key] for key in TOTALS} == {key: first[key] for key in TOTALS}, show(run)
        assert differences(area / "before", place / "copy") == []
        assert temporaries(os.fsencode(place)) == []
