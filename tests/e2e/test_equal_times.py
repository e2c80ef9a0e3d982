"""The equality of modification times, in each program that compares them.

It decides which existing files are skipped without reading, which ones are read, and which ones get a new time. The
table below restates the rule, so that the expected results do not come from the code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import RUN, Argument, Completed, pcopy, show, summary
from tests.support.files import write

MIB = 1 << 20
SECOND = 10**9
AT = 1_700_000_001 * SECOND + 987_654_321
"""An odd second with all nine digits of nanoseconds: every coarser time resolution changes it."""
BEFORE_1970 = -3 * SECOND - 12_345_678
"""Truncated to whole seconds this is -4 s, not -3 s: Linux rounds towards smaller numbers."""

CASES: dict[str, tuple[int, int, int, bool]] = {
    # (time of the source, time of the copy, --modify-window, equal?)
    "the same": (AT, AT, 0, True),
    "cut to 100 ns": (AT, AT - 21, 0, True),
    "cut to 1 us": (AT, AT - 321, 0, True),
    "cut to 10 ms": (AT, AT - 7_654_321, 0, True),
    "cut to 1 s": (AT, AT - 987_654_321, 0, True),
    "cut to 2 s": (AT, AT - 1_987_654_321, 0, True),
    "before 1970, cut to 1 s": (BEFORE_1970, -4 * SECOND, 0, True),
    "before 1970, cut to 10 ms": (BEFORE_1970, -3 * SECOND - 20_000_000, 0, True),
    "before 1970, cut towards 1970": (BEFORE_1970, -3 * SECOND, 0, False),
    "a nanosecond earlier": (AT, AT - 1, 0, False),
    "a nanosecond later": (AT, AT + 1, 0, False),
    "the same second, earlier": (AT, AT - 200_000_000, 0, False),
    "the same second, later": (AT, AT + 1_000_000, 0, False),
    "cut to 100 ms": (AT, AT - 87_654_321, 0, False),
    "rounded up": (AT, AT - 987_654_321 + SECOND, 0, False),
    "the source is cut": (AT - 987_654_321, AT, 0, False),
    "within the window": (AT, AT - 2 * SECOND, 2, True),
    "later, within the window": (AT, AT + 2 * SECOND, 2, True),
    "beyond the window": (AT, AT + 2 * SECOND + 1, 2, False),
    "cut, beside a window": (AT, AT - 1_987_654_321, 1, True),
}

PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "changed": ("pcopy", ("--existing", "changed")),
    "mirror": ("pcopy", ("--mirror",)),
    "psync": ("psync", ()),
    "newer": ("pcopy", ("-u",)),
    "in place": ("pcopy", ("--existing", "changed", "--inplace")),
    "one by one": ("pcopy", ("--existing", "changed", "--log", "/dev/null")),
}


def run(program: str, *words: Argument, **options: Any) -> Completed:
    name, more = PROGRAMS[program]
    return pcopy("--json", "--checkpoint", "none", *more, *words, program=name, **options)


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_equality_of_times_is_the_same_in_each_program(area: Path, program: str, backend: str) -> None:
    """For each case there are files of equal and of different content, small ones and ones that are split."""
    rows = []
    for number, (case, (source, copy, window, equal)) in enumerate(CASES.items()):
        if window:
            continue
        for size in (9, 3 * MIB) if program != "in place" else (9,):
            for content in (b"s", b"o"):
                path = f"{number}/{size} {content.decode()}"
                write(area / "source" / path, b"s" * size, source)
                write(area / "copy" / path, content * size, copy)
                rows.append((case, path, content, source, copy, equal))
    words: list[Argument] = ["--chunk-size", "1M", f"{area}/source/", area / "copy"]
    done = run(program, *words, ranks=2, env={"PCOPY_BACKEND": backend})
    assert done.returncode == 0, show(done)
    for case, path, content, source, copy, equal in rows:
        there = (area / "copy" / path).stat().st_mtime_ns, (area / "copy" / path).read_bytes()[:1]
        kept = equal or (program == "newer" and copy > source)
        assert there == ((copy, content) if kept else (source, b"s")), (case, path)


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("case", [case for case, row in CASES.items() if row[2]])
def test_modify_window_is_the_same_in_each_program(area: Path, case: str, backend: str) -> None:
    source, copy, window, equal = CASES[case]
    for program in PROGRAMS:
        top = area / program
        write(top / "source/file", b"source", source)
        write(top / "copy/file", b"copied", copy)
        words: list[Argument] = ["--modify-window", str(window), f"{top}/source/", top / "copy"]
        done = run(program, *words, env={"PCOPY_BACKEND": backend})
        assert done.returncode == 0, show(done)
        kept = equal or (program == "newer" and copy > source)
        there = (top / "copy/file").stat().st_mtime_ns, (top / "copy/file").read_bytes()
        assert there == ((copy, b"copied") if kept else (source, b"source")), program


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("case", CASES)
def test_pverify_compares_to_the_nanosecond_or_within_the_window(area: Path, case: str, backend: str) -> None:
    """A verification hides no difference: a truncated time differs, unless the window includes it."""
    source, copy, window, _ = CASES[case]
    write(area / "source/file", b"the same", source)
    write(area / "copy/file", b"the same", copy)
    for directory in ("source", "copy"):
        os.utime(area / directory, ns=(AT, AT))
    words = ("--compare", "mtime", "--modify-window", str(window), area / "source", area / "copy")
    done = pcopy(*words, program="pverify", env={"PCOPY_BACKEND": backend})
    assert done.returncode == (0 if abs(source - copy) <= window * SECOND else 1), show(done)


def test_metadata_update_of_an_unread_file_leaves_its_time(area: Path) -> None:
    """The mode is set, and the time is not: otherwise a later run could not see that the contents differ."""
    write(area / "source/file", b"new", AT)
    write(area / "copy/file", b"old", AT - 987_654_321)
    (area / "source/file").chmod(0o640)
    (area / "copy/file").chmod(0o600 | 0o44)
    reported = summary(run("psync", f"{area}/source/", area / "copy"))
    assert reported["mended"] == 1
    there = (area / "copy/file").stat()
    assert (there.st_mode & 0o777, there.st_mtime_ns) == (0o640, AT - 987_654_321)


def test_dry_run_predicts_decisions_about_times(area: Path) -> None:
    for number, (source, copy, window, _) in enumerate(CASES.values()):
        if not window:
            for content in (b"same", b"else"):
                write(area / f"source/{number}/{content.decode()}", b"same", source)
                write(area / f"copy/{number}/{content.decode()}", content, copy)
    words = (f"{area}/source/", area / "copy")
    predicted = summary(run("psync", "--dry-run", *words))
    reported = summary(run("psync", *words))
    keys = ("files", "skipped", "mended", "failed")
    assert [predicted[key] for key in keys] == [reported[key] for key in keys]


def test_only_files_with_doubtful_times_are_read(area: Path) -> None:
    for number in range(20):
        write(area / f"source/{number}", b"x" * 100, AT)
        write(area / f"copy/{number}", b"x" * 100, AT - 987_654_321 if number % 2 else AT)
    write(area / "source/doubtful", b"x", AT)
    write(area / "copy/doubtful", b"x", AT + 1)
    log = area / "trace"
    trace = ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=open,openat,openat2"]
    if subprocess.run(["strace", "-V"], capture_output=True, check=False).returncode:
        pytest.skip("there is no strace here")
    done = pcopy("-q", "--mirror", f"{area}/source/", area / "copy", ranks=1, wrap=trace)
    assert done.returncode == 0, show(done)
    opened = [line for line in log.read_text(errors="replace").splitlines() if "O_PATH" not in line]
    assert sum('"doubtful"' in line for line in opened) == 2, "on both sides"
    for number in range(20):  # the source may be opened, since the copy is recent; the copy is not
        assert sum(f'"{number}"' in line for line in opened) <= 1, number


def test_every_program_with_modify_window_is_in_the_table() -> None:
    """A new program that compares times must be added to the table."""
    named = {name for name, _ in PROGRAMS.values()} | {"pverify"}
    found = set()
    for name, words in RUN.items():
        if name != "late":
            text = subprocess.run([sys.executable, *words, "--help"], capture_output=True, check=True).stdout
            found |= {name} if b"--modify-window" in text or b"--existing" in text else set()
    assert found == named
