"""``-v``, ``-vv``, ``--log`` and ``--report``: what is reported of subtrees that one call of the C backend processes.
rsync says what differs, and the Python backend reports the same lines.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.test_existing_subtrees import make_trees_with_each_difference
from tests.support.command import Argument, succeed
from tests.support.users import require_root

ACTIONS = ("copy", "replace", "meta", "skip", "delete")
OPTIONS: dict[str, tuple[Argument, ...]] = {
    "changes": ("-v",),
    "all": ("-vv",),
    "log": ("-q", "--log", "log"),
    "changes of filtered items": ("-v", "--exclude", "file"),
    "log of filtered items": ("-q", "--exclude", "file", "--log", "log"),
    "changes of small items": ("-v", "--smaller-than", "9"),
    "report": ("-q", "--report", "report.json"),
}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a source and a copy that differs in each way at each depth."""
    require_root("give directories away")
    area = tmp_path_factory.mktemp("trees")
    make_trees_with_each_difference(area)
    return area


def reported(
    area: Path, trees: Path, words: tuple[Argument, ...], program: str, ranks: int, backend: str
) -> Counter[tuple[str, str, int]]:
    """Copy the source to a new copy of the target. Return what is reported of each item: line, type and size."""
    for name in ("source", "copy"):
        shutil.rmtree(area / name, ignore_errors=True)
        subprocess.run(["cp", "-a", trees / name, area], check=True)
    for name in ("log", "report.json"):
        (area / name).unlink(missing_ok=True)
    existing = [] if program == "psync" else ["--existing", "changed"]
    run = succeed(
        *words, *existing, "source/", "copy", cwd=area, program=program, ranks=ranks, env={"PCOPY_BACKEND": backend}
    )
    if "--report" in words:
        sizes = json.loads((area / "report.json").read_bytes())["sizes"]
        assert sum(sums["files"] for each in sizes for sums in each.values() if isinstance(sums, dict))
        return Counter((json.dumps(each), "", 0) for each in sizes)
    if "--log" not in words:
        lines = run.stderr.decode().splitlines()
        return Counter((line, "", 0) for line in lines if line.partition(" ")[0] in ACTIONS)
    log = [json.loads(line) for line in (area / "log").read_bytes().splitlines()]
    for line in log:
        assert (line["seconds"] > 0) == (line["type"] == "file" and line["action"] in ("copy", "replace")), line
    return Counter(
        (f"{line['action']} {line.get('change', '')} {line['path']}", line["type"], line["bytes"]) for line in log
    )


def changed_by_rsync(area: Path, program: str) -> set[str]:
    """Return the paths that rsync would change."""
    words = ["rsync", "-aniHAX", "--modify-window=-1", *(["--delete"] if program == "psync" else [])]
    lines = subprocess.run([*words, f"{area}/source/", f"{area}/copy"], stdout=subprocess.PIPE, check=True).stdout
    return {os.path.normpath(line[12:]) for line in lines.decode().splitlines()}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("program", ["pcopy", "psync"])
@pytest.mark.parametrize("options", OPTIONS)
def test_both_backends_report_the_same_of_each_item(
    area: Path, trees: Path, options: str, program: str, ranks: int
) -> None:
    words = OPTIONS[options]
    by_c = reported(area, trees, words, program, ranks, "c")
    assert by_c == reported(area, trees, words, program, ranks, "python")
    assert max(by_c.values()) == 1
    if options == "changes":
        paths = {
            os.path.normpath(line.split(" ", 2 if line.startswith(("meta", "replace")) else 1)[-1]) for line, *_ in by_c
        }
        assert {path.partition("/")[2] or "." for path in paths} == changed_by_rsync(trees, program)


@pytest.mark.parametrize("ranks", [1, 3])
def test_log_of_a_new_copy_names_each_item_once(area: Path, trees: Path, ranks: int) -> None:
    source = trees / "source"
    for words in (("-q",), ("-vv", "--progress", "none")):
        succeed(*words, "--log", area / "log", f"{source}/", area / f"copy{len(words)}", ranks=ranks)
        found = [json.loads(line) for line in (area / "log").read_bytes().splitlines()]
        made = subprocess.run(["find", source, "-printf", "%p %y %s\n"], stdout=subprocess.PIPE, check=True).stdout
        expected = Counter(made.decode().splitlines())
        sizes = Counter(
            f"{os.path.normpath(line['path'])} {line['type'][0]} "
            f"{line['bytes'] if line['type'] == 'file' else os.lstat(line['path']).st_size}"
            for line in found
        )
        assert sizes == expected and {line["action"] for line in found} == {"copy"}
