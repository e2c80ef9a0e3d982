"""``psync`` is pcopy --mirror under another name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pcopy.cli.psync import PSYNC
from tests.support.command import Argument, Completed, pcopy, show
from tests.support.oracle import changes, differences, snapshot
from tests.support.refusals import refusal
from tests.support.users import NOBODY, require_root


def psync(*arguments: Argument, **options: object) -> Completed:
    return pcopy(*arguments, **options, program="psync")  # type: ignore[arg-type]


@pytest.fixture
def trees(area: Path) -> Path:
    """Return a directory with trees ``a`` and ``b``, each of which has items that the other one lacks."""
    for name, text in (("a/new", "1"), ("a/d/changed", "22"), ("b/d/changed", "3"), ("b/old/below", "4")):
        (area / name).parent.mkdir(parents=True, exist_ok=True)
        (area / name).write_text(text)
    return area


@pytest.mark.parametrize("ranks", [1, 2])
def test_psync_makes_the_target_equal(trees: Path, ranks: int) -> None:
    run = psync("--json", f"{trees}/a/", trees / "b", ranks=ranks)
    assert run.returncode == 0, show(run)
    assert json.loads(run.stdout)["deleted"] == 2
    assert differences(trees / "a", trees / "b") == []
    assert psync("--jobs").returncode == 0


def test_messages_name_psync(trees: Path) -> None:
    run = psync(trees / "a", trees / "b")
    reported = run.stderr.decode()
    assert run.returncode == 2 and reported.startswith(f"psync: {trees}/a: with psync SRC needs a trailing slash")
    assert f"psync {trees}/a/ {trees}/b;" in reported and "pcopy" not in reported.replace(str(trees), "")
    run = psync(trees / "a")
    assert run.stderr.startswith(b"psync: DST is missing after ") and run.stderr.endswith(b"see psync --help\n"), show(
        run
    )
    run = psync("--max-delete", "1", f"{trees}/a/", trees / "b")
    assert run.returncode == 1 and b"psync: nothing was deleted: the source lacks 2 items" in run.stderr, show(run)
    assert b"usage: psync [options] SRC/ DST\n       psync --resume" in psync("--help").stdout


@pytest.mark.parametrize(("program", "default"), [("psync", "changed"), ("pcopy", "replace")])
def test_help_names_the_default_of_existing(trees: Path, program: str, default: str) -> None:
    """With ``replace``, the second run creates a new file."""
    reported = b" ".join(pcopy("--help", program=program).stdout.split())
    assert f"count as failed); default: {default} --checksum".encode() in reported
    for _ in range(2):
        assert pcopy(f"{trees}/a/", trees / "b", program=program).returncode == 0
        if not (trees / "first").exists():
            (trees / "first").hardlink_to(trees / "b/new")
    assert (trees / "first").samefile(trees / "b/new") == (default == "changed")


def test_messages_do_not_mention_implied_options() -> None:
    """Help does not offer options that psync refuses."""
    for words in ("--compress zstd", "--decompress", "-avz", "--files-from list", "-u --files-from list", "other/"):
        reported = refusal(lambda: PSYNC.parse_command_line([*words.split(), "source/", "copy"]))  # noqa: B023
        assert "--mirror" not in reported and "--delete" not in reported
        assert "pcopy --compress zstd" in reported or "compress zstd" not in words
    assert "--compress" not in PSYNC.parser().format_help()


def test_psync_has_no_option_for_path_lists() -> None:
    """The help, completion and manual page come from the parser and omit the options as well."""
    help_text = PSYNC.parser().format_help()
    assert not re.search(r"^ +(-0|--files-from|--from0)\b", help_text, re.MULTILINE)
    for words in ("--files-from list", "--files-from=list", "-0", "--from0", "--from list"):
        reported = refusal(lambda: PSYNC.parse_command_line([*words.split(), "source/", "copy"]))  # noqa: B023
        assert reported.startswith(words[:2]) and "write pcopy --from LIST SRC DST" in reported and "\n" not in reported


def test_remote_paths_of_rsync_are_refused(trees: Path) -> None:
    """rsync takes each of these as a path on another host: its dry run calls the program given instead of ssh."""
    before = snapshot(trees)
    shell = trees.parent / f"{trees.name}-ssh"
    shell.write_text("#!/bin/sh\necho asked for host $1 >&2\nexit 7\n")
    shell.chmod(0o755)
    for target in ("host:mirror", "host:mirror/", "host:", "login1.site.org:x", "10.0.0.1:x", "ann@host:mirror"):
        asked = subprocess.run(["rsync", "-n", "-e", shell, "a/", target], check=False, cwd=trees, capture_output=True)
        assert b"asked for host" in asked.stderr, target
        for program in ("psync", "pcopy"):
            run = pcopy("a/", target, cwd=trees, program=program)
            assert (run.returncode, run.stdout, run.stderr.count(b"\n")) == (2, b"", 1), show(run)
            advice = f"{program} reaches no other hosts: use rsync, or mount the file system here"
            assert f"{advice}; for a file of that name write ./{target}\n".encode() in run.stderr, show(run)
            source = pcopy(target, "b", cwd=trees, program=program)
            assert source.returncode == 2 and advice.encode() in source.stderr, show(source)
    shell.unlink()
    assert changes(before, snapshot(trees)) == []


def test_existing_or_explicit_path_with_a_colon_is_local(trees: Path) -> None:
    assert psync("a/", "./host:mirror", cwd=trees).returncode == 0
    (trees / "a/more").write_text("more")
    assert psync("a/", "host:mirror", cwd=trees).returncode == 0
    assert (
        psync("host:mirror/", "host:mirror/below/../../b", cwd=trees).returncode == 2
    )  # the parent directory is missing
    assert psync("host:mirror/", "b", cwd=trees).returncode == 0
    assert psync("a/", "2026-11-24T18:00", cwd=trees).returncode == 0
    for copy in ("host:mirror", "b", "2026-11-24T18:00"):
        assert differences(trees / "a", trees / copy) == []


def test_every_existing_policy_deletes_extra_items(trees: Path) -> None:
    subprocess.run(["touch", "-d", "2001-01-01", trees / "a/d/changed"], check=True)
    run = psync("-u", f"{trees}/a/", trees / "b")
    assert run.returncode == 0, show(run)
    assert (trees / "b/d/changed").read_text() == "3" and not (trees / "b/old").exists()
    assert psync("--checksum", f"{trees}/a/", trees / "b").returncode == 0
    assert differences(trees / "a", trees / "b") == []


def test_psync_overrides_existing_policy_of_the_configuration(trees: Path) -> None:
    (trees / "options.yaml").write_text("existing: skip\npsync: {max-delete: 5}\n")
    assert psync("--config", trees / "options.yaml", f"{trees}/a/", trees / "b").returncode == 0
    assert differences(trees / "a", trees / "b") == []


def test_pcopy_resumes_jobs_of_psync(trees: Path) -> None:
    """The job failed, so that nothing was deleted yet."""
    checkpoint = trees / "job"
    words = ("--checkpoint", checkpoint, f"{trees}/a/", trees / "b")
    run = psync("--max-errors", "1", *words, wrap=_failing_utimensat(trees))
    assert run.returncode in (1, 75), show(run)
    assert b"psync: to go on: pcopy --resume" in run.stderr
    assert (trees / "b/old").exists()
    run = pcopy("--resume", checkpoint)
    assert run.returncode == 0, show(run)
    assert differences(trees / "a", trees / "b") == []


def _failing_utimensat(area: Path) -> list[str]:
    """Return a command prefix that makes all calls of utimensat fail."""
    return [
        "strace",
        "-f",
        "-qq",
        "-o",
        str(area / "trace"),
        "-e",
        "trace=utimensat",
        "-e",
        "inject=utimensat:error=EIO",
    ]


@pytest.mark.parametrize("rights", ["rwx", "r-x", "---"])
def test_directories_below_a_default_acl_count_as_copied_if_their_mode_differs(area: Path, rights: str) -> None:
    """A default ACL decides the mode of new files: that is no property of the file system."""
    if not shutil.which("setfacl"):
        pytest.skip("there is no setfacl here")
    (area / "a").mkdir()
    subprocess.run(["setfacl", "-m", f"d:u::{rights},d:g::r-x,d:o::---", area / "a"], check=True)
    for name in ("same", "other"):
        (area / "a" / name).mkdir(mode=0o755)
        os.chmod(area / "a" / name, 0o755)
    assert psync("-q", f"{area}/a/", area / "b").returncode == 0
    for path in (area / "b", area / "b" / "other"):
        before = path.stat()
        os.chmod(path, 0o700)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for copied in (2, 0):
        run = psync("--json", f"{area}/a/", area / "b", ranks=1)
        summary = json.loads(run.stdout)
        assert (summary["copied"], summary["skipped"], summary["failed"]) == (copied, 3 - copied, 0), show(run)
        assert differences(area / "a", area / "b") == []


@pytest.mark.parametrize("mode", [0, 0o100, 0o300, 0o400])
def test_owner_of_a_target_that_may_not_be_entered_repairs_it(area: Path, mode: int) -> None:
    require_root("run as another user")
    area.chmod(0o755)
    for name, text in (("a/d/f", "new"), ("b/d/f", "old!"), ("b/d/extra", "x")):
        (area / name).parent.mkdir(parents=True, exist_ok=True)
        (area / name).write_text(text)
    (area / "state").mkdir()
    for path in area.rglob("*"):
        os.chown(path, NOBODY, NOBODY)
    os.chmod(area / "a", 0o500)
    os.chmod(area / "b", mode)
    state = {"XDG_STATE_HOME": str(area / "state")}
    run = psync("--json", f"{area}/a/", area / "b", ranks=2, user=NOBODY, env=state)
    assert run.returncode == 0, show(run)
    summary = json.loads(run.stdout)
    assert (summary["found"], summary["failed"], summary["deleted"]) == (3, 0, 1), show(run)
    assert differences(area / "a", area / "b") == []
