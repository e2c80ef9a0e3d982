"""Common options of GNU tar: ptar accepts them or reports what to write instead."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import tarfile
from functools import partial
from pathlib import Path

import pytest

from pcopy.cli import mistakes
from pcopy.cli.mistakes import ADVICE_OF_PTAR
from pcopy.cli.ptar import PTAR
from tests.support import refusals
from tests.support.archives import made_of, member, ptar
from tests.support.command import show
from tests.support.users import NOBODY


def options_of_tar() -> list[str]:
    """The long and short options in the help of GNU tar."""
    text = subprocess.run(["tar", "--help"], check=True, capture_output=True, text=True).stdout
    found = set()
    for line in text.splitlines():
        if match := re.match(r"\s{2,6}(-\S.*)", line):
            words = re.split(r"\s{2,}", match[1])[0]
            found.update(re.findall(r"(?<![\w-])(?:--[a-z][a-z-]*|-[A-Za-z0-9](?!\w))", words))
    assert len(found) > 150
    return sorted(found)


def test_each_option_of_tar_is_accepted_or_explained() -> None:
    has = {option for action in PTAR.parser()._actions for option in action.option_strings}
    assert [option for option in options_of_tar() if option not in has and option not in ADVICE_OF_PTAR.by_option] == []
    assert has.isdisjoint(ADVICE_OF_PTAR.by_option.keys() - {"-h"})  # it prints the help


def test_unsupported_options_of_tar_are_refused_with_advice() -> None:
    help_text = PTAR.help_or_version_text(["--help"])
    assert help_text is not None
    for option, advice in ADVICE_OF_PTAR.by_option.items():
        reported = refusals.refusal(partial(PTAR.parse_command_line, ["-c", "-f", "a.tar", option, "b"]))
        assert reported.startswith(f"{option}: {advice}"), option
        assert "\n" not in reported
        for named in re.findall(r"(?<!pchmod )--?[a-zA-Z][a-z-]*", advice):
            assert named in help_text or named == "--owner", (option, named)


@pytest.mark.parametrize("bundle", ["-xvjf", "-xvkf", "-xvmf", "-cvJf", "-cPf"])
def test_unsupported_option_in_a_bundle_is_refused_with_advice(bundle: str) -> None:
    reported = refusals.refusal(partial(PTAR.parse_command_line, [bundle, "a.tar"]))
    letter = f"-{bundle[-2]}"
    assert reported.startswith(f"{letter} in {bundle}: {ADVICE_OF_PTAR.by_option[letter]}")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["-c", "-f", "a.tar", "-C", "d", "x", "-C", "e", "y"], "-C"),
        (["-cvf", "a.tar", "-Cd", "x", "--directory=e", "y"], "-C"),
        (["xf", "a.tar", "--directory", "d", "-vC", "e"], "-C"),
        (["-xf", "a.tar", "-f", "b.tar"], "-f"),
        (["-t", "--file=a.tar", "-vfb.tar"], "-f"),
    ],
)
def test_repeated_option_is_refused_and_not_ignored(words: list[str], option: str) -> None:
    """tar goes to each directory in turn, and refuses several archives (without -M)."""
    reported = refusals.refusal(partial(PTAR.parse_command_line, words))
    assert reported.startswith(f"{option} can only be given once: "), reported


def test_operand_that_looks_like_a_repeated_option_is_accepted() -> None:
    arguments = PTAR.parse_command_line(["-cf", "a.tar", "-C", "d", "--", "-C", "-f"])
    assert (arguments.archive, arguments.directory, arguments.paths) == (b"a.tar", b"d", (b"-C", b"-f"))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    for name in ("d/a.txt", "d/e/b.txt", "d/c.o", "f/x.o"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(name.encode())
    (tmp_path / "tree/d/c.o").chmod(0o4751)
    subprocess.run(["tar", "-cf", "a.tar", "tree"], cwd=tmp_path, check=True)
    return tmp_path / "a.tar"


def unpacked(archive: Path, name: str, *command: str) -> list[tuple[str, int, int, int]]:
    """Run the command and return the paths, modes, owners and times of the extracted items."""
    place = archive.parent / name
    place.mkdir()
    if command[0] == "tar":
        command = ("tar", "-C", f"{place}", "-f", f"{archive}", *command[1:])
        subprocess.run(command, check=True, capture_output=True)
    else:
        done = ptar(*command, "-q", "-f", archive, "-C", place)
        assert done.returncode == 0, show(done)
    found = []
    for around, directories, files in os.walk(place):
        for each in (*directories, *files):
            status = os.lstat(os.path.join(around, each))
            path = os.path.relpath(os.path.join(around, each), place)
            found.append((path, status.st_mode, status.st_uid, status.st_mtime_ns // 10**9))
    return sorted(found)


def test_options_of_tar_for_the_defaults_change_nothing(archive: Path) -> None:
    words = ["-p", "--preserve-permissions", "--same-permissions", "--same-owner", "--acls", "--xattrs", "-S"]
    theirs = unpacked(archive, "theirs", "tar", "-x", *words)
    assert unpacked(archive, "ours", "-x", *words) == theirs
    assert unpacked(archive, "bundled", "-xpS") == theirs


def test_strip_components_works_like_tar(archive: Path) -> None:
    words = ("-x", "--strip-components", "2")
    assert unpacked(archive, "ours", *words) == unpacked(archive, "theirs", "tar", *words)


@pytest.mark.parametrize(("removed", "skipped"), [("1", 1), ("2", 2), ("9", 3)])
def test_directory_without_remaining_name_does_not_change_the_target(
    removed: str, skipped: int, tmp_path: Path
) -> None:
    """GNU tar is the oracle. The owner, mode and time in the archive are those of another user's private tree."""
    members = [member("top", kind=tarfile.DIRTYPE), member("top/d", kind=tarfile.DIRTYPE), member("top/d/file")]
    for info, _ in members:
        info.mode, info.uid, info.gid, info.mtime = 0o2770, NOBODY, NOBODY, 10**9
    archive = made_of(tmp_path / "a.tar", members)
    targets = {}
    for program in ("tar", "ptar"):
        place = tmp_path / program
        place.mkdir()
        place.chmod(0o711)
        words = ("-x", "-f", archive, "-C", place, "--strip-components", removed)
        if program == "tar":
            subprocess.run(["tar", *words], check=True)
        else:
            done = ptar(*words, "--json", ranks=2)
            reported = json.loads(done.stdout)
            counted = reported["found"], reported["skipped"], reported["failed"]
            assert (done.returncode, counted) == (0, (3, skipped, 0)), show(done)
        status = place.stat()
        targets[program] = status.st_mode, status.st_uid, status.st_gid, status.st_mtime == 10**9
        assert len([*place.rglob("*")]) == 3 - skipped
    assert targets["ptar"] == targets["tar"]


def test_advised_options_extract_the_same_files_as_wildcards(archive: Path) -> None:
    theirs = unpacked(archive, "theirs", "tar", "-x", "--wildcards", "*.txt")
    ours = unpacked(archive, "ours", "-x", "--exclude", "*", "--include", "*/", "--include", "*.txt")
    assert [each for each in ours if each[0].endswith(".txt")] == [each for each in theirs if each[0].endswith(".txt")]
    assert not [each for each in ours if each[0].endswith(".o")]
    advice = refusals.refusal(partial(PTAR.parse_command_line, ["-x", "-f", "a.tar", "--wildcards", "*.txt"]))
    assert "--exclude '*' --include '*/' --include 'P'" in advice


def test_each_option_has_one_advice() -> None:
    """In a table with two entries for an option the first would be ignored."""
    tables = [node for node in ast.walk(ast.parse(Path(mistakes.__file__).read_text())) if isinstance(node, ast.Dict)]
    assert len(tables) > 5
    for table in tables:
        words: list[str] = []
        for key, value in zip(table.keys, table.values, strict=True):
            if key is not None:
                words += [ast.literal_eval(key)]
            elif isinstance(value, ast.Call) and isinstance(value.args[0], ast.Tuple):
                words += [ast.literal_eval(each) for each in value.args[0].elts]
        assert [word for word in {*words} if words.count(word) > 1] == []
