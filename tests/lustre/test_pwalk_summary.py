"""``pwalk --summary`` reports how files on Lustre are distributed; the parser of the tests gives the same result."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lustre.conftest import Lustre
from tests.lustre.standin import (
    INITIALISED,
    ON_MDT,
    OVERSTRIPING,
    RELEASED,
    SERVER,
    STALE,
    STORED,
    Shown,
    parsed,
    plain,
)
from tests.lustre.test_copies import KINDS, MIB, make, run
from tests.support.command import pcopy, show
from tests.support.faults import require_strace
from tests.support.users import NOBODY, require_root


def summary(lustre: Lustre, *words: Any, **more: Any) -> dict[str, Any]:
    reported = run(lustre, "--summary", "--json", *words, program="pwalk", **more)
    assert (reported.returncode, reported.stderr) == (0, b""), show(reported)
    found: dict[str, Any] = json.loads(reported.stdout)
    assert found["found"] == found["files"] + found["directories"] + found["symlinks"] + found["special"]
    return found


def by(rows: list[dict[str, Any]], key: str, *values: str) -> dict[Any, Any]:
    return {row[key]: tuple(row[value] for value in values or ("files", "bytes")) for row in rows}


def layouts(lustre: Lustre, paths: Sequence[Path]) -> list[Shown]:
    code = "for path in sys.argv[1:]: print(os.getxattr(path, 'lustre.lov').hex())"
    return [parsed(bytes.fromhex(line)) for line in lustre.asked(code, *paths).split()]


def laid(shown: Shown, size: int) -> Counter[int]:
    """Return the bytes of a file without holes on each OST (-1: its MDT), calculated stripe by stripe."""
    found: Counter[int] = Counter()
    for part in shown.components:
        if shown.composite and part.flags & (INITIALISED | STALE) != INITIALISED:
            continue
        for at in range(part.start, min(part.end, size), 1 << 16):
            bytes_ = min(1 << 16, size - at, part.end - at)
            found[-1 if part.pattern & ON_MDT else part.osts[at // part.size % len(part.osts)]] += bytes_
    return found


def test_summary_of_layouts_and_ost_usage(lustre: Lustre) -> None:
    tree = lustre.first / "tree"
    for name, blob in KINDS.items():
        for number, size in enumerate((0, 5 * MIB + 1, 66 * MIB if name == "growing" else 1000)):
            make(lustre, tree / f"{number}" / name, blob, size)
    make(lustre, tree / "0" / "over", plain(12, MIB, pattern=OVERSTRIPING | 1), 7 * MIB)
    os.link(tree / "2" / "four", tree / "again")
    (tree / "link").symlink_to("1/one")
    files = [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    sizes = [path.stat().st_size for path in files]
    (reported,) = summary(lustre, "-n", 3, tree)["summary"]["lustre"]
    assert [reported] == summary(lustre, "-n", 1, tree)["summary"]["lustre"]
    assert reported["path"] == os.fspath(tree)
    wanted: dict[str, dict[Any, list[int]]] = {key: {} for key in ("stripes", "pools", "osts", "size")}
    objects: Counter[int] = Counter()
    estimated: Counter[int] = Counter()
    for shown, size in zip(layouts(lustre, files), sizes, strict=True):
        used = [each for each in shown.components if each.flags & INITIALISED or not shown.composite][-1]
        on_mdt = used.pattern & ON_MDT
        for table, key in (("stripes", 0 if on_mdt else used.count), ("size", 0 if on_mdt else used.size)):
            row = wanted[table].setdefault(key, [0, 0])
            row[:] = row[0] + 1, row[1] + size
        for pool in {each.pool for each in shown.components} - {""} or {""}:
            row = wanted["pools"].setdefault(pool, [0, 0])
            row[:] = row[0] + 1, row[1] + size
        objects.update(ost for each in shown.components for ost in each.osts)
        estimated += laid(shown, size)
    assert by(reported["stripe_counts"], "stripes") == {key: tuple(row) for key, row in wanted["stripes"].items()}
    assert by(reported["stripe_sizes"], "stripe_size") == {key: tuple(row) for key, row in wanted["size"].items()}
    assert by(reported["pools"], "pool") == {key: tuple(row) for key, row in wanted["pools"].items()}
    assert {row["ost"]: row["objects"] for row in reported["osts"]} == objects
    assert by(reported["patterns"], "pattern", "files") == {
        "raid0": (10,), "overstriped": (1,), "mirrored": (3,), "composite": (6,)
    }  # fmt: skip
    assert sum(row["files"] for row in reported["layouts"]) == len(files)
    assert by(reported["mdts"], "mdt", "directories") == {0: (4,)}
    assert reported["on_mdt"] == {"files": 3, "estimated_bytes": estimated.pop(-1)}
    got = {row["ost"]: row["estimated_bytes"] for row in reported["osts"] if row["estimated_bytes"]}
    assert got == +estimated


def test_summary_of_holes_released_data_and_unknown_layouts(lustre: Lustre) -> None:
    """Holes, archived data, files without a layout, unknown layouts; directories on several MDTs."""
    lustre.need_standin("the test replaces stored layouts")
    tree = lustre.first / "tree"
    make(lustre, tree / "holes", plain(2, MIB), 0)
    os.truncate(tree / "holes", 8 * MIB)
    with (tree / "holes").open("r+b") as file:
        file.write(b"x" * MIB)
    make(lustre, tree / "archived", plain(4, MIB), 3 * MIB)
    stored = bytearray(os.getxattr(tree / "archived", STORED))
    stored[7] |= RELEASED >> 24
    os.setxattr(tree / "archived", STORED, bytes(stored))
    lustre.asked("os.close(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | 0o20400))", tree / "none")
    make(lustre, tree / "strange")
    os.setxattr(tree / "strange", STORED, (0x0BD70BD0).to_bytes(4, "little") + bytes(60))
    (tree / "below").mkdir()
    os.setxattr(tree / "below", SERVER, b"1")
    (reported,) = summary(lustre, "-n", 2, tree, mdts=2)["summary"]["lustre"]
    patterns = {"released": (1, 3 * MIB), "raid0": (1, 8 * MIB), "none yet": (1, 0), "unknown": (1, 1000)}
    assert by(reported["patterns"], "pattern") == patterns
    allocated = 512 * (tree / "holes").stat().st_blocks
    shares = [row["estimated_bytes"] for row in reported["osts"] if row["estimated_bytes"]]
    assert len(shares) == 2
    assert all(abs(share - allocated // 2) <= 1 for share in shares)
    assert sum(row["objects"] for row in reported["osts"]) == 2
    assert by(reported["mdts"], "mdt", "directories") == {0: (1,), 1: (1,)}


def test_summary_of_several_file_systems_and_of_one_file(lustre: Lustre) -> None:
    for top in (lustre.first, lustre.second):
        make(lustre, top / "tree" / "file", plain(3 if top == lustre.first else 2, MIB), 10)
    both = summary(lustre, "-n", 2, lustre.first / "tree", lustre.second / "tree")["summary"]["lustre"]
    found = {each["path"]: by(each["stripe_counts"], "stripes") for each in both}
    if not lustre.is_real:
        tops = {os.fspath(lustre.first / "tree"): 3, os.fspath(lustre.second / "tree"): 2}
        assert found == {path: {stripes: (1, 10)} for path, stripes in tops.items()}
    (one,) = summary(lustre, lustre.first / "tree" / "file")["summary"]["lustre"]
    assert by(one["layouts"], "layout") == {"3 stripes of 1 MiB": (1, 10)}


def test_layouts_that_cannot_be_read_are_reported(lustre: Lustre) -> None:
    """Each failure is reported, and the items are listed."""
    make(lustre, lustre.first / "tree" / "file")
    reported = run(lustre, "--summary", "--json", lustre.first / "tree", program="pwalk", refuse=("getxattr",))
    assert reported.returncode == 1 and b"tree/file: getstripe: Input/output error" in reported.stderr, show(reported)
    found = json.loads(reported.stdout)
    assert (found["found"], found["files"], found["directories"], found["failed"]) == (3, 1, 1, 1)
    assert found["summary"]["lustre"][0]["patterns"] == [{"pattern": "unknown", "files": 1, "bytes": 1000}]


def test_unreadable_file_has_an_unknown_layout_and_causes_no_failure(lustre: Lustre) -> None:
    require_root("be somebody else")
    make(lustre, lustre.first / "tree" / "closed")
    (lustre.first / "tree" / "closed").chmod(0)
    make(lustre, lustre.first / "tree" / "open")
    (lustre.first / "tree" / "open").chmod(0o644)
    reported = run(lustre, "--summary", "--json", lustre.first / "tree", program="pwalk", user=NOBODY)
    assert reported.returncode == 0, show(reported)
    patterns = by(json.loads(reported.stdout)["summary"]["lustre"][0]["patterns"], "pattern")
    assert patterns == {"raid0": (1, 1000), "unknown": (1, 1000)}


def test_summary_is_printed_and_written_as_an_html_page(lustre: Lustre, area: Path) -> None:
    make(lustre, lustre.first / "tree" / "file", plain(2, MIB, "fast"), 3 * MIB)
    reported = run(lustre, "--summary", "--page", area / "page.html", lustre.first / "tree", program="pwalk")
    assert reported.returncode == 0, show(reported)
    for line in ("on Lustre, at ", "2 stripes of 1 MiB in the pool fast", "stripes on OSTs", "OST ", "MDT 0"):
        assert line in reported.stdout.decode(), line
    page = (area / "page.html").read_text()
    for line in ("2 stripes of 1 MiB in the pool fast", "objects and bytes by OST", "fast", "are an estimate"):
        assert line in page, line


def test_no_layout_calls_are_made_on_other_file_systems(area: Path) -> None:
    require_strace()
    (area / "tree").mkdir()
    (area / "tree" / "file").write_text("x")
    log = area / "calls"
    strace = ("strace", "-f", "-qq", "-o", str(log), "-e", "trace=getxattr,lgetxattr,fgetxattr,ioctl")
    reported = pcopy("--summary", "--json", "tree", program="pwalk", cwd=area, wrap=strace, real=True)
    assert reported.returncode == 0, show(reported)
    assert "lustre" not in json.loads(reported.stdout)["summary"]
    calls = log.read_text()
    assert "getxattr" not in calls and "0xaf" not in calls, calls
