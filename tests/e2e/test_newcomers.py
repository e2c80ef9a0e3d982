"""Mistakes of users who know cp, rsync, dcp or rclone: each gives one line that names the closest existing item.

All cases share one directory: no case changes anything in it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import Completed, pcopy, show
from tests.support.files import write
from tests.support.filesystems import remove
from tests.support.oracle import changes, snapshot
from tests.support.users import NOBODY, require_root


class Mistake(NamedTuple):
    """Arguments of a command line and a part of the expected message. ``TOP`` stands for the directory of all cases."""

    words: list[str]
    reported: str
    program: str = "pcopy"


MISTAKES = {
    # Missing paths
    "a slip in SRC": Mistake(["TOP/data/proyect/x", "archive"], "TOP/data/project/x exists: was that meant?"),
    "two slips in SRC": Mistake(["dta/proyect/x/", "archive"], "data/project/x/ exists: was that meant?"),
    "a case of letters": Mistake(["Results", "archive"], "Results: does not exist; results exists: was that meant?"),
    "no name like it": Mistake(["data/zzz/x", "archive"], "data exists, but holds nothing named zzz"),
    "nothing like it": Mistake(["zzzzzz", "archive"], "check the name, and the order: SRC comes before DST"),
    "SRC and DST swapped": Mistake(["archive/new", "results"], "archive exists, but holds nothing named new"),
    "a slip in DST": Mistake(
        ["results", "archvie/x"], "directory archvie does not exist; archive exists: was that meant?"
    ),
    "DST's directory is missing": Mistake(["results", "zzz/x"], "zzz does not exist; create that first (mkdir -p)"),
    "a slip in the DST of several": Mistake(["file", "results", "archiv"], "archive exists: was that meant?"),
    "a name with a dash": Mistake(["--", "-dsh", "archive"], "-dsh: does not exist; -dash exists: was that meant?"),
    "a slip in the second SRC": Mistake(["file", "resluts", "archive"], "results exists: was that meant?"),
    "a link that leads nowhere": Mistake(["gone-link", "data"], "is a symbolic link to TOP/gone, which", "pverify"),
    "a link that leads nowhere, with a slash": Mistake(["gone-link/", "new"], "a symbolic link to TOP/gone, which"),
    "sources that are to go": Mistake(["--remove-source-files", "data/", "new"], "then prm SRC"),
    "a compressor of tar": Mistake(["-c", "-I", "pigz", "-f", "a.tar", "data"], "-I: write -z or --zstd", "ptar"),
    "two compressors": Mistake(
        ["-czf", "a.tar", "--zstd", "data"], "--zstd: not allowed with argument -z/--gzip", "ptar"
    ),
    "a depth of du": Mistake(["--max-depth=2", "data"], "--max-depth: write -maxdepth N after PATH", "pwalk"),
    "nothing to compare": Mistake(["--compare", "data", "results"], "data: is a path; write properties", "pverify"),
    "sizes alone": Mistake(["--size-only", "data", "results"], "--size-only: write --compare size", "pverify"),
    "a slip in what is verified": Mistake(["data.sgi", "data"], "data.sig exists: was that meant?", "pverify"),
    "a slip in the tree that is verified": Mistake(["data", "dat"], "data exists: was that meant?", "pverify"),
    # Options and purposes of other programs of the suite
    "a list for psync": Mistake(
        ["--from", "file", "data/", "archive"], "--from: a list does not show what SRC lacks", "psync"
    ),
    "a list of pcopy": Mistake(["--from0", "file"], "-0 says how the paths in --from end: give --from, too", "prm"),
    "an output after a test": Mistake(["data", "-type", "f", "-o", "x.csv"], "write --output x.csv", "pwalk"),
    "-q after a test": Mistake(["data", "-type", "f", "-q"], "short options stand before the first test", "pwalk"),
    "a key with a dash": Mistake(["--sort", "-size", "data"], "write --sort=-size", "pwalk"),
    "links of tar": Mistake(["-chf", "x.tar", "data"], "-h: symbolic links are archived as such", "ptar"),
    "-a of tar": Mistake(["-caf", "x.tar.xz", "data"], "name the archive x.tar.zst, or x.tar and run xz x.tar", "ptar"),
    "-h of chown": Mistake(["-hR", "0", "data"], "-h: the owner of a link in a tree is its own", "pchmod"),
    "a dot before the group": Mistake(
        ["--owner", "nosuch.", "data"], "there is no user nosuch.; write a colon before the group: USER:GROUP", "pchmod"
    ),
    "a new name for what is sent": Mistake(["file", "data/new"], "the last argument must be a directory", "pbcast"),
    # Shells
    "a pattern that matches nothing": Mistake(["data/*.h5", "archive"], "data/*.h5: does not exist; no name matches"),
    "a pattern in quotes": Mistake(["resu*", "archive"], "results exists: a shell does not expand patterns in quotes"),
    "a tilde in quotes": Mistake(
        ["~/in-home", "archive"], "a shell does not expand ~ in quotes; TOP/home/in-home exists"
    ),
    "a variable in quotes": Mistake(["$HOME/in-home", "archive"], "expand $ in single quotes; TOP/home/in-home exists"),
    "an unknown variable in quotes": Mistake(["${RUN}/x", "archive"], "in single quotes: write the path in full"),
    "a space behind": Mistake(["results ", "archive"], "results exists: write it without the space around it"),
    "DOS line ends": Mistake(
        ["results\r", "archive"], "results\\r: does not exist; results exists: write it without the c"
    ),
    "quotes in quotes": Mistake(['"results"', "archive"], "results exists: write it without the quotes that are part"),
    "a backslash in quotes": Mistake(["my\\ file", "archive"], "my file exists: write it without the backslash"),
    "two paths in quotes": Mistake(["results file", "archive"], "results and file exist: quote each of them, not all"),
    "a whole command in quotes": Mistake(["results archive"], "DST is missing after results archive", "pcopy"),
    "a comma between paths": Mistake(["results,file", "archive"], "results and file exist: write a space between them"),
    "a dash from a text": Mistake(
        ["\u2013verify", "results", "archive"], "its dash is not the one of options: write --verify"
    ),
    "a URL": Mistake(["file://TOP/file", "archive"], "TOP/file exists: write it without file://"),
    # Habits from other programs
    "rclone's transfers": Mistake(["--transfers=8", "results", "archive"], "write -n N"),
    "rclone's ages": Mistake(["--max-age", "7d", "results", "archive"], "write --newer-than AGE"),
    "another host": Mistake(["results", "ann@node7:/archive"], "ann@node7:/archive: on another host? pcopy reaches no"),
    "a source on another host": Mistake(["node7:/data", "archive"], "node7:/data: does not exist; on another host?"),
    "a bucket": Mistake(["s3://bucket/data", "archive"], "on another host? pcopy reaches no other hosts"),
    "rsync's -z": Mistake(
        ["-avz", "results", "archive"], "-z in -avz: pcopy does not compress during transfer; leave it out"
    ),
    "rsync's -n": Mistake(["-n", "results", "archive"], "results: not a number of processes"),
    "rsync's -e": Mistake(["-e", "ssh", "results", "archive"], "-e: pcopy reaches no other hosts"),
    "rsync's rules": Mistake(["--exclude=- *.o", "results", "archive"], "a rule in rsync's form"),
    "rsync's --include without --exclude": Mistake(
        ["--include", "*.h5", "data", "new"], "to select only these: --exclude '*' --include '*/' --include '*.h5'"
    ),
    "rsync's order of rules": Mistake(
        ["--include=*.h5", "--exclude=*", "data", "new"], "data: the filters select nothing in it"
    ),
    "cp's -t": Mistake(["-t", "archive", "results"], "-t: write DST last"),
    "cp's -i": Mistake(["-i", "results", "archive"], "to keep existing files, write --existing skip"),
    "drm's --lite": Mistake(["--lite", "data"], "--lite: prm has one way to remove", "prm"),
    "filters where nothing is walked": Mistake(
        ["--exclude", "x", "file", "archive"], "--exclude: pbcast sends what is named", "pbcast"
    ),
    "make's -j": Mistake(["-j4", "results", "archive"], "write -n N"),
    "dcp's --progress": Mistake(["--progress", "10", "data", "new"], "write --progress-interval 10"),
    "standard output for errors": Mistake(
        ["--errors", "-", "data", "new"], "--errors -: standard output is not possible: name a file; -vv shows"
    ),
    "standard output for the log": Mistake(
        ["--log=-", "data", "new"], "--log -: standard output is not possible: name a file"
    ),
    "standard output for metrics": Mistake(
        ["--metrics=-", "data", "new"], "--metrics -: standard output is not possible: name a file"
    ),
    # Options
    "a slip in an option": Mistake(["--verfy", "results", "archive"], "--verfy; the nearest is --verify"),
    "an abbreviation": Mistake(["--sig", "x", "results", "archive"], "--sig; the nearest is --signature"),
    "an unknown progress": Mistake(
        ["--progress=jsn", "results", "archive"], "jsn: not one of auto, bar, plain, json, none; the nearest is json"
    ),
    "an unknown digest": Mistake(
        ["--hash", "blake2", "results", "archive"], "blake2: not one of xxh3-128, blake3, none; the nearest is blake3"
    ),
    "an unknown policy": Mistake(["--existing", "newest", "results", "archive"], "not one of replace, changed, newer"),
    "an unknown attribute": Mistake(["--preserve=foo", "results", "archive"], "'foo' is not one of mode"),
    "an unknown size": Mistake(["--chunk-size", "10GiBs", "results", "archive"], "10GiBs: not a size (like 65536, 64K"),
    "a size in two words": Mistake(["--chunk-size", "10", "GB", "results", "archive"], "GB: does not exist"),
    "an option that takes SRC": Mistake(
        ["--exclude", "results", "archive"], "(--exclude has taken results as its value)"
    ),
    "no SRC": Mistake([], "SRC and DST are missing: pcopy [options] SRC... DST"),
    "no DST": Mistake(["results"], "DST is missing after results: pcopy [options] SRC... DST"),
    "an unknown user": Mistake(["--chown", "nosuchuser", "results", "archive"], "there is no user nosuchuser"),
    "stripes in another form": Mistake(["--stripe", "8,4M", "results", "archive"], "COUNT[:SIZE] such as 8 or 8:4M"),
    # Report, list and configuration files
    "a directory for errors": Mistake(
        ["--errors", "archive", "file", "new"], "name a file, such as archive/errors.jsonl"
    ),
    "errors in no directory": Mistake(
        ["--errors", "archiv/e", "file", "new"], "archiv does not exist; archive exists: was that meant?"
    ),
    "--errors without its FILE": Mistake(
        ["--errors", "file", "results", "archive"], "file: is there already, and is not what --errors has written"
    ),
    "--log without its FILE": Mistake(
        ["--log", "file", "results", "archive"], "file: is there already, and is not what --log has written"
    ),
    "prm --errors without its FILE": Mistake(
        ["--yes", "--errors", "file", "results"], "file: is there already, and is not what --errors has", "prm"
    ),
    "a file that is no signature": Mistake(
        ["--signature", "file", "data", "new"], "file: is there already, and is no s"
    ),
    "a slip in a file of paths": Mistake(
        ["--files-from", "fiel", "data/", "new"],
        "--from TOP/fiel: does not exist; TOP/file exists: was that meant?",
    ),
    "nothing is so large": Mistake(
        ["--larger-than", "1T", "data", "new"], "data: the filters select nothing in it: no file has such a size"
    ),
    "nothing is so new": Mistake(
        ["--newer-than", "2100-01-01", "--exclude", "x/", "data", "new"],
        "nothing in an excluded directory is selected; or no file has such an age",
    ),
    "one standard input for two": Mistake(
        ["--files-from", "-", "--exclude-from", "-", "data/", "new"], "both read standard input: name a file for one"
    ),
    "a slip in a file of patterns": Mistake(["--exclude-from", "fiel", "data", "new"], "file exists: was that meant?"),
    "a slip in --config": Mistake(["--config", "optoins.yaml", "file", "new"], "options.yaml exists: was that meant?"),
    "a manifest as a signature": Mistake(["data.man", "data"], "pverify --manifest data.man data", "pverify"),
    "a signature as a manifest": Mistake(["--manifest", "data.sig", "data"], "pverify data.sig data", "pverify"),
    "a signature that comes last": Mistake(["data", "data.sig"], "pverify data.sig data", "pverify"),
    "only a signature": Mistake(["data.sig"], "SIGNATURE and PATH, or A and B, expected, but 1 path given", "pverify"),
    # Jobs
    "a slip in a job": Mistake(["--resume", "JOC"], "there is no such job; JOB is one: was that meant?"),
    "a slip in a job to discard": Mistake(["--discard", "JOC"], "there is no such job; JOB is one: was that meant?"),
    "a slip in a job to change": Mistake(["--control", "JOC", "pause"], "JOB is one: was that meant? A job of --check"),
    "no job at all like it": Mistake(["--resume", "zz"], "pcopy --jobs lists all unfinished jobs"),
    "a destination in a job's place": Mistake(
        ["--resume", "kept.copy"], "; did you mean job JOB, which copies from or to this directory?"
    ),
    "SRC and DST with --resume": Mistake(["--resume", "results", "archive"], "--resume takes a job, not SRC and DST"),
}


@pytest.fixture(scope="module")
def top(session_scratch: Path) -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(prefix="newcomers-", dir=session_scratch))
    top.chmod(0o755)
    for directory in ("data/project/x", "data/other", "archive", "results", "home", "kept"):
        (top / directory).mkdir(parents=True)
    for file in (
        "file",
        "my file",
        "-dash",
        "data/project/x/f",
        "results/r",
        "home/in-home",
        "kept/file",
        "options.yaml",
    ):
        (top / file).write_text("# content\n")
    (top / "gone-link").symlink_to("gone")
    (top / "kept.copy/kept/file/in the way").mkdir(parents=True)
    run = pcopy("--signature", "data.sig", "--manifest", "data.man", "data", "new", cwd=top, env=environment(top))
    assert run.returncode == 0, show(run)
    remove(top / "new")
    run = pcopy("kept", "kept.copy", cwd=top, env=environment(top))
    assert run.returncode == 1, show(run)
    yield top
    remove(top)


def environment(top: Path) -> dict[str, str]:
    return {"HOME": str(top / "home"), "XDG_STATE_HOME": str(top / "state")}


def assert_refused(run: Completed, program: str, reported: str) -> None:
    lines = run.stderr.decode().splitlines()
    assert run.returncode == 2, show(run)
    assert run.stdout == b"", show(run)
    assert len(lines) == 1, show(run)
    assert lines[0].startswith(f"{program}: "), show(run)
    assert reported in lines[0], show(run)


@pytest.mark.parametrize("name", MISTAKES)
def test_common_mistake_is_explained_in_one_line(top: Path, name: str) -> None:
    mistake = MISTAKES[name]
    (job,) = os.listdir(top / "state/pcopy")
    other = job[:-1] + ("0" if job[-1] != "0" else "1")
    words = [word.replace("TOP", str(top)).replace("JOC", other) for word in mistake.words]
    before = snapshot(top)
    run = pcopy(*words, program=mistake.program, cwd=top, env=environment(top))
    assert_refused(run, mistake.program, mistake.reported.replace("TOP", str(top)).replace("JOB", job))
    assert [line for line in changes(before, snapshot(top)) if not line.startswith("atime ")] == []


def test_missing_write_or_search_permission_is_explained(area: Path) -> None:
    """The runs belong to an ordinary user, since root may write everywhere."""
    (area / "source").mkdir()
    (area / "closed/in").mkdir(parents=True)
    if os.geteuid() != 0:
        area.chmod(0o555)
    run = pcopy(area / "source", area / "copy", user=NOBODY, env={"XDG_STATE_HOME": str(area / "state")})
    assert_refused(run, "pcopy", f"{area}/copy: cannot be created, since {area} is not writable by you (mode 0")
    area.chmod(0o755)
    (area / "closed").chmod(0)
    run = pcopy(area / "closed/in", area / "copy", user=NOBODY)
    assert_refused(
        run, "pcopy", f"{area}/closed/in: cannot be examined: Permission denied; {area}/closed may not be entered"
    )
    run = pcopy(area / "source", area / "closed/in/copy", user=NOBODY)
    assert_refused(run, "pcopy", f"{area}/closed may not be entered")
    (area / "closed").chmod(0o755)


def test_read_only_file_system_is_explained(area: Path) -> None:
    require_root("mount")
    (area / "source").mkdir()
    (area / "point").mkdir()
    mount = f'mount -t tmpfs -o ro none {area}/point && exec "$@"'
    run = pcopy(area / "source", area / "point", wrap=["unshare", "--mount", "sh", "-c", mount, "sh"])
    assert_refused(
        run, "pcopy", f"{area}/point/source: cannot be created, since {area}/point is on a file system that is mounted"
    )


@pytest.mark.parametrize(
    ("program", "words", "what"),
    [
        ("pcopy", ["--errors", "AT", "source/", "copy"], "written"),
        ("pcopy", ["--manifest", "AT", "source/", "copy"], "written"),
        ("psync", ["--report", "AT", "source/", "copy"], "written"),
        ("pverify", ["--create", "AT", "source"], "written"),
        ("prm", ["--yes", "--log", "AT", "source"], "written"),
        ("ptar", ["-cf", "AT", "source"], "created"),
    ],
)
def test_refusal_to_create_a_file_gives_the_reason(area: Path, program: str, words: list[str], what: str) -> None:
    require_root("mount")
    for name in ("source", "point", "closed", "copy"):
        (area / name).mkdir()
    os.chown(area / "copy", NOBODY, NOBODY)
    mount = f'mount -t tmpfs -o ro none {area}/point && exec "$@"'
    at = f"{area}/point/new.json"
    named = [word.replace("AT", at) for word in words]
    run = pcopy(*named, program=program, cwd=area, wrap=["unshare", "--mount", "sh", "-c", mount, "sh"])
    why = f"cannot be {what}, since {area}/point is on a file system that is mounted read-only; name another file"
    assert_refused(run, program, f"{at}: {why}")
    at = f"{area}/closed/new.json"
    run = pcopy(*(word.replace("AT", at) for word in words), program=program, cwd=area, user=NOBODY)
    why = f"cannot be {what}, since {area}/closed is not writable by you (mode 0755, owner 0); name another file"
    assert_refused(run, program, f"{at}: {why}")
    assert list((area / "closed").iterdir()) == [] and (area / "source").exists()


def test_job_runs_if_some_targets_exist_and_others_cannot_be_created(area: Path) -> None:
    """Existing targets are updated. A job is refused only if none of its targets can be created."""
    for name in ("one", "two"):
        (area / name).mkdir()
    (area / "into/one").mkdir(parents=True)
    for path in (area / "into/one", area / "one"):
        os.utime(path, (1, 1))
    (area / "into").chmod(0o555)
    run = pcopy("--checkpoint", "none", area / "one", area / "two", area / "into", user=NOBODY)
    assert run.returncode == 1, show(run)
    assert b"two: mkdir: Permission denied" in run.stderr
    (area / "into").chmod(0o755)


def test_large_directories_are_not_searched_for_similar_names(area: Path) -> None:
    from pcopy.jobs import suggestions

    (area / "large").mkdir()
    for number in range(suggestions.MAX_SEARCHED_NAMES + 1):
        os.mknod(area / f"large/name{number:06}")
    assert "name000001 does" not in suggestions.suggestion_for_missing_path(os.fsencode(area / "large/mame000001"))
    os.unlink(area / "large/name000000")
    assert "name000001 exists: was that meant?" in suggestions.suggestion_for_missing_path(
        os.fsencode(area / "large/mame000001")
    )


def test_names_in_hints_are_escaped(area: Path) -> None:
    os.mkdir(os.fsencode(area) + b"/res\x1b[m\nults")
    run = pcopy(area / "results", area / "copy")
    assert_refused(run, "pcopy", "res\\x1b[m\\nults exists: was that meant?")


def test_message_about_a_configured_option_names_file_and_line(area: Path) -> None:
    """The options come from a configuration file: the user did not type them."""
    write(area / "source/file", b"")
    (area / "set.yaml").write_text('errors: set.jsonl\nexclude: "*"\n')
    run = pcopy("--config", "../set.yaml", "--exclude", "nothing", ".", area / "copy", cwd=area / "source")
    assert_refused(run, "pcopy", "which is copied from or to; write it elsewhere (errors: ../set.yaml:1)")
    run = pcopy("--config", "set.yaml", "--errors", "own.jsonl", "source/", "copy", cwd=area)
    assert_refused(run, "pcopy", "is selected (exclude: set.yaml:2)")
