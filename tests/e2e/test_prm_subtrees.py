"""``prm`` removes subtrees by single calls of the backend: what it leaves, what it counts, and what that costs."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.test_prm import count_items, prm
from tests.support.command import Argument, show
from tests.support.faults import require_strace, slowed
from tests.support.filesystems import Place
from tests.support.processes import peak_memory
from tests.support.users import require_root

MIB = 1 << 20
LEVELS = 6000
"""Depth of a chain of directories. With a path of its own for each of them, they would take some 100 MB."""


def chain(top: Path, levels: int) -> None:
    top.mkdir()
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir(top)
        for _ in range(levels):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.fchdir(here)
        os.close(here)


def random_tree(top: Path, seed: int, directories: int) -> list[Path]:
    """Create a tree with this number of directories below its top. Return its items in the order of creation."""
    chosen = random.Random(seed)
    made, items = [top], [top]
    top.mkdir()
    for number in range(directories):
        path = chosen.choice(made[-12:] if chosen.random() < 0.7 else made) / f"d{number}"
        path.mkdir()
        made.append(path)
        items.append(path)
        for file in range(chosen.choice((0, 0, 1, 3, 20))):
            each = path / f"f{file}"
            each.write_bytes(b"x" * chosen.randrange(2000))
            items.append(each)
        if chosen.random() < 0.2:
            (path / "link").symlink_to("nowhere")
            items.append(path / "link")
    for number in range(1500):
        (made[directories // 2] / f"many {number}").touch()
        items.append(made[directories // 2] / f"many {number}")
    return items


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("quiet", [False, True], ids=["", "quiet"])
@pytest.mark.parametrize(("ranks", "milliseconds"), [(1, 0), (2, 0), (3, 1)])
def test_exactly_the_items_that_can_be_removed_are_removed(
    on: Place, ranks: int, milliseconds: int, quiet: bool
) -> None:
    """Some items are immutable. These and the directories above them remain, and nothing else."""
    require_root("make files immutable")
    tree = on("ext4") / "tree"
    seed = ranks
    items = random_tree(tree, seed, 150)
    kept = {path for path in random.Random(seed).sample(items[1:], 12) if not path.is_symlink()}
    stays = kept | {path for path in items if path.parent in kept}
    wanted = stays | {above for path in stays for above in path.parents if above.is_relative_to(tree)}
    subprocess.run(["chattr", "+i", *kept], check=True)
    try:
        words = ["-q"] if quiet else ["--json"]
        run = prm("--yes", *words, tree, ranks=ranks, wrap=slowed("unlinkat", milliseconds) if milliseconds else ())
        assert run.returncode == 1, show(run)
        assert {path for path in items if os.path.lexists(path)} == wanted
        if not quiet:
            reported = json.loads(run.stdout)
            assert (reported["found"], reported["removed"]) == (len(items), len(items) - len(wanted))
            assert reported["not_empty"] + reported["failed"] == len(wanted)
    finally:
        subprocess.run(["chattr", "-i", *kept], check=True)
    assert prm("--yes", tree, ranks=ranks).returncode == 0
    assert not tree.exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_items_are_counted_once(area: Path, ranks: int) -> None:
    """Each call that removes a name is slow, so that subtrees are left to other tasks at many places."""
    random_tree(area / "tree", 4, 150)
    wanted = {
        "files": count_items(area / "tree", "-type", "f"),
        "directories": count_items(area / "tree", "-type", "d"),
        "symlinks": count_items(area / "tree", "-type", "l"),
        "bytes": total_size(area / "tree"),
    }
    run = prm("--yes", "--json", area / "tree", ranks=ranks, wrap=slowed("unlinkat", 1))
    assert run.returncode == 0, show(run)
    reported = json.loads(run.stdout)
    assert {key: reported[key] for key in wanted} == wanted
    assert reported["found"] == reported["removed"] == sum(wanted.values()) - wanted["bytes"]
    assert not (area / "tree").exists()


def total_size(tree: Path) -> int:
    sizes = subprocess.run(["find", tree, "-type", "f", "-printf", "%s\n"], check=True, capture_output=True).stdout
    return sum(map(int, sizes.split()))


def traced_calls(log: Path, calls: str, *words: Argument) -> list[str]:
    """Return the system calls that ``prm --yes`` with one rank makes, as strace prints them."""
    require_strace()
    wrap = ["strace", "-f", "-qq", "-o", log, "-e", f"trace={calls}"]
    run = prm("--yes", *words, wrap=wrap)
    assert run.returncode == 0, show(run)
    return log.read_text().splitlines()


FILES = 250
"""Number of files in a directory that one call removes, even if it takes longer than calls should."""
STATUS = "statx,newfstatat"


@pytest.mark.c_backend
@pytest.mark.parametrize(
    ("words", "reads"),
    [
        (("-q",), False),
        (("-q", "--errors", "errors"), False),
        ((), True),
        (("--json",), True),
        (("-q", "--metrics", "metrics"), True),
        (("-q", "--report", "report.json"), True),
        (("-q", "--log", "log"), True),
        (("-q", "--exclude", "other"), True),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_status_of_files_is_read_only_where_it_is_shown(
    area: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], reads: bool
) -> None:
    monkeypatch.chdir(area)
    (area / "tree").mkdir()
    for number in range(FILES):
        (area / f"tree/file {number}").write_bytes(b"size")
    calls = traced_calls(area / "trace", f"{STATUS},unlinkat", "-n", "1", *words, "tree")
    names = Counter(re.findall(r"\b(\w+)\([^\"]*\"file \d+\"", "\n".join(calls)))
    status = sum(number for name, number in names.items() if name != "unlinkat")
    assert names["unlinkat"] == FILES
    assert status >= FILES if reads else status == 0


def test_sizes_are_reported_with_q(area: Path) -> None:
    random_tree(area / "tree", 5, 40)
    size = total_size(area / "tree")
    assert prm("-q", "--yes", "--report", area / "report.json", area / "tree").returncode == 0
    assert json.loads((area / "report.json").read_text())["totals"]["bytes"] == size
    random_tree(area / "tree", 5, 40)
    assert prm("-q", "--yes", "--metrics", area / "metrics", area / "tree").returncode == 0
    assert re.search(rf"^prm_bytes_total(?:{{.*}})? {size}$", (area / "metrics").read_text(), re.M)


def test_summary_of_failed_quiet_run_states_no_sizes(on: Place) -> None:
    require_root("make files immutable")
    tree = on("ext4") / "tree"
    random_tree(tree, 6, 10)
    (tree / "kept").touch()
    subprocess.run(["chattr", "+i", tree / "kept"], check=True)
    try:
        run = prm("-q", "--yes", tree)
    finally:
        subprocess.run(["chattr", "-i", tree / "kept"], check=True)
    assert run.returncode == 1
    assert re.search(rb"removed: [\d,]+ files, ", run.stdout), show(run)
    assert b"file of" not in run.stdout and b"files of" not in run.stdout


def test_memory_does_not_depend_on_the_length_of_paths(area: Path) -> None:
    chain(area / "short", 10)
    chain(area / "long", LEVELS)
    long, short = (peak_memory("prm", "--yes", area / name, ranks=1) for name in ("long", "short"))
    assert long < short + 24 * MIB
    assert os.listdir(area) == []


def test_each_level_of_a_deep_tree_is_opened_few_times(area: Path) -> None:
    """Not from the top again for every directory that is removed."""
    chain(area / "tree", LEVELS)
    opened = traced_calls(area / "trace", "openat,open", "-q", "-n", "1", area / "tree")
    assert LEVELS <= len(opened) < 4 * LEVELS
    assert not (area / "tree").exists()
