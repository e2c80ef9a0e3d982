"""Each guard of the C backend is necessary: when it is disabled, an attack or a crash does harm."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.attack import Attack
from tests.hostile.attacks import ATTACKS
from tests.hostile.c_attacks import C_ATTACKS, STOPPED_BY_CALLER
from tests.hostile.c_guards import (
    DOUBTED_ROWS,
    FOLDED,
    REDUNDANT,
    ROWS,
    SIMULATED,
    TRACED_ROWS,
    DoubtedRow,
    Row,
    TracedRow,
)
from tests.hostile.stage import staged
from tests.hostile.test_rules import HANGS, without
from tests.hostile.window import PATIENCE
from tests.support import command, native
from tests.support.command import pcopy, show, succeed, summary
from tests.support.edits import Edit
from tests.support.faults import require_strace
from tests.support.files import write
from tests.support.filesystems import Place, mounted
from tests.support.preload import preloaded
from tests.support.users import require_root

BY_NAME = {
    attack.name: attack._replace(window=attack.in_c or attack.window, in_c=None) for attack in (*ATTACKS, *C_ATTACKS)
}
CASES = [(row, BY_NAME[name]) for row in ROWS for name in row.attacks]
DISABLED = "PCOPY_TEST_DISABLED_GUARDS"
FOLDING = Path(__file__).parents[1] / "chaos" / "folding.c"
SIBLINGS = 12
"""Directories, some of which C enters in one call."""


def guards() -> list[str]:
    """Return the names of all guards."""
    return re.findall(r"^    GUARD_IS\((\w+), \"", (native.SOURCES / "guards.h").read_text(), re.M)


@pytest.fixture(scope="module")
def packages() -> Iterator[dict[tuple[Edit, ...], Path]]:
    """Copies of the package with the test build of the C backend, by their edits."""
    made: dict[tuple[Edit, ...], Path] = {}
    yield made
    for path in made.values():
        shutil.rmtree(path)


def package_with(edits: tuple[Edit, ...], packages: dict[tuple[Edit, ...], Path]) -> Path:
    if edits not in packages:
        extension = native.extension_for_tests()
        package = without(edits, Path(tempfile.mkdtemp(prefix="pcopy-test-guards-")))
        package.chmod(0o755)  # ordinary users run it, too
        shutil.copy(extension, package / "pcopy/fsio/backend" / extension.name)
        packages[edits] = package
    return packages[edits]


def test_each_guard_has_a_row() -> None:
    named = [guard for row in (*ROWS, *DOUBTED_ROWS) for guard in row.guards]
    without_attack = [*(row.guard for row in TRACED_ROWS), *FOLDED, *SIMULATED, *REDUNDANT]
    assert sorted({*named, *without_attack}) == sorted(guards())
    assert len({*named}) + len(without_attack) == len(guards()), "a guard has several kinds of rows"
    assert all(row.reason for row in ROWS if len(row.guards) > 1 or row.edits)
    assert all(row.reason for row in DOUBTED_ROWS if len(row.guards) > 1)


def test_each_attack_has_a_row() -> None:
    used = {name for row in ROWS for name in row.attacks}
    assert {attack.name for attack in C_ATTACKS} <= used


def run(row: Row, attack: Attack, place: Path, area: Path, package: Path, disabled: str) -> None:
    """Carry out an attack, and check that it does harm if and only if guards are disabled."""
    with staged(place, area) as stage:
        patience = HANGS if row.hangs and disabled else PATIENCE
        ended, harm = attack.carry_out(stage, package, patience, {DISABLED: disabled})
    assert bool(harm) == bool(disabled), (harm, ended)
    assert (ended.status is None) == (row.hangs and bool(disabled)), ended


@pytest.mark.in_turn(16)
@pytest.mark.parametrize("disables", [True, False], ids=["without", "with"])
@pytest.mark.parametrize(
    ("row", "attack"), CASES, ids=[f"{' '.join(row.guards)}: {attack.name}".replace(" ", "-") for row, attack in CASES]
)
def test_attack_does_harm_without_the_guard_only(
    row: Row,
    attack: Attack,
    disables: bool,
    on: Place,
    area: Path,
    packages: dict[tuple[Edit, ...], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_root("be attacked by an ordinary user")
    monkeypatch.setattr(command, "backend", "c")
    package = package_with(row.edits, packages)
    run(row, attack, on("ext4"), area, package, ",".join(row.guards) if disables else "")


@pytest.mark.parametrize("attack", STOPPED_BY_CALLER, ids=lambda attack: attack.name.replace(" ", "-"))
def test_attack_on_items_left_to_the_caller_does_no_harm(
    attack: Attack,
    on: Place,
    area: Path,
    packages: dict[tuple[Edit, ...], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_root("be attacked by an ordinary user")
    monkeypatch.setattr(command, "backend", "c")
    run(Row(("",), (attack.name,)), attack, on("ext4"), area, package_with((), packages), "")


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("disables", [True, False], ids=["without", "with"])
@pytest.mark.parametrize("row", TRACED_ROWS, ids=lambda row: row.guard)
def test_call_is_made_with_the_guard_only(
    row: TracedRow,
    disables: bool,
    area: Path,
    packages: dict[tuple[Edit, ...], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_root("create files of other users")
    require_strace()
    monkeypatch.setattr(command, "backend", "c")
    for name, content in (("source", b"new"), ("target", b"old")):
        (area / name).mkdir()
        (area / name / "victim").write_bytes(content)
    write(area / "source/inner/new", b"new")
    environment = {"PYTHONPATH": str(package_with(row.edits, packages)), DISABLED: row.guard if disables else ""}
    wrap = ["strace", "-f", "-qq", "-y", "-o", area / "trace", "-e", f"trace={row.calls}"]
    succeed(
        "--fsync",
        "--no-sync",
        "-n",
        "1",
        "--in-flight",
        "4",
        f"{area}/source/",
        area / "target",
        env=environment,
        wrap=wrap,
    )
    trace = (area / "trace").read_text()
    found = re.search(row.wanted, trace)
    assert bool(found) != disables, trace
    if found and row.before:
        later = re.search(row.before, trace)
        assert later and found.start() < later.start(), trace


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("disables", [True, False], ids=["without", "with"])
@pytest.mark.parametrize("row", DOUBTED_ROWS, ids=lambda row: " ".join(row.guards))
def test_lost_contents_are_kept_without_the_guard_only(
    row: DoubtedRow,
    disables: bool,
    area: Path,
    packages: dict[tuple[Edit, ...], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job is killed when it syncs, after all files have their names; then the contents are lost, as by a loss of
    power. The next job to the same destination must not keep these files.
    """
    require_strace()
    monkeypatch.setattr(command, "backend", "c")
    source, target = area / "source", area / "target"
    for number in range(SIBLINGS):
        file = source / f"{number}/file"
        write(file, b"contents")
        file.chmod(row.mode)
        os.utime(file, (10**9, 10**9))
    words = ("--existing", "changed", "-n", "1", "--in-flight", "1", f"{source}/", target)
    environment = {"XDG_STATE_HOME": str(area / "state"), "PYTHONPATH": str(package_with((), packages))}
    kill = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=syncfs", "-e", "inject=syncfs:signal=KILL"]
    pcopy(*words, env=environment, wrap=kill)
    copies = sorted(target.rglob("file"))
    assert len(copies) == SIBLINGS
    for copy in copies:
        copy.write_bytes(bytes(len(b"contents")))
        os.utime(copy, (10**9, 10**9))
    succeed(*words, env=environment | {DISABLED: ",".join(row.guards) if disables else ""})
    lost = [copy for copy in copies if copy.read_bytes() != b"contents"]
    assert bool(lost) == disables


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("disables", [True, False], ids=["without", "with"])
@pytest.mark.parametrize("guard", FOLDED)
def test_directories_whose_names_differ_in_case_become_one_without_the_guard_only(
    guard: str,
    disables: bool,
    area: Path,
    session_scratch: Path,
    packages: dict[tuple[Edit, ...], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job is killed when it syncs, before anything is recorded. One of each pair of directories has failed then. The
    resumed job meets all directories that it has created.
    """
    require_root("mount file systems")
    require_strace()
    monkeypatch.setattr(command, "backend", "c")
    for number in range(SIBLINGS):
        for name, file in ((f"name{number}", "one"), (f"NAME{number}", "other")):
            write(area / "source" / name / file, b"contents")
    environment = {"XDG_STATE_HOME": str(area / "state"), "PYTHONPATH": str(package_with((), packages))}
    kill = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=syncfs", "-e", "inject=syncfs:signal=KILL"]
    with mounted("tmpfs", session_scratch, size=64 << 20) as place:
        environment |= {**preloaded(FOLDING), "PCOPY_TEST_FOLDS": str(place.stat().st_dev)}
        for attempt in range(5):  # rarely both spellings are created: the library looks a name up before
            target = place / f"target{attempt}"
            environment["XDG_STATE_HOME"] = str(area / f"state{attempt}")
            pcopy("-T", "-n", "1", area / "source", target, env=environment, wrap=kill)
            if len(list(target.iterdir())) == SIBLINGS:
                break
        assert len(list(target.iterdir())) == SIBLINGS
        environment[DISABLED] = guard if disables else ""
        run = pcopy("--resume", "--json", "-n", "1", env=environment)
        numbers = [len(list(path.iterdir())) for path in target.iterdir()]
    assert numbers == [2 if disables else 1] * SIBLINGS, show(run)
    assert (summary(run)["failed"] > 0) != disables, show(run)
