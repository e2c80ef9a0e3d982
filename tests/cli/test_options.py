"""The command line: accepted arguments, and refusals in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pcopy import __version__
from pcopy.cli.job_options import changeable_fields
from pcopy.cli.mistakes import PCOPY_ADVICE
from pcopy.cli.pcopy import PCOPY, help_or_version, parse
from pcopy.cli.ptar import PTAR
from pcopy.cli.pverify import PVERIFY
from pcopy.fsio.backend.choose import backend_name
from pcopy.fsio.preserve import PRESERVABLE_METADATA, PreservedMetadataKinds
from pcopy.jobs.lifecycle import CheckpointSettings
from pcopy.report.screen import OutputOptions
from pcopy.tasks.base.job import CopyOptions, Options
from pcopy.tools.arguments import CopyArguments
from pcopy.units import format_running_clock, format_seconds, format_size, parse_size
from tests.support import refusals
from tests.support.users import require_root


def refusal(*argv: str | bytes) -> str:
    return refusals.refusal(lambda: parse(argv))


def preserved(*argv: str) -> set[str]:
    preserve = parse([*argv, "a", "b"]).options.preserve
    return {name for name in PRESERVABLE_METADATA if getattr(preserve, name)}


ALL = set(PRESERVABLE_METADATA)
OPTIONS = (
    *("-n", "-T", "-a", "-r", "-R", "-u", "-q", "-v", "-h", "--version", "--preserve", "--no-preserve", "--existing"),
    *("--modify-window", "--chunk-size", "--block-size", "--no-sync", "--errors", "--json", "--progress"),
    *("--progress-interval", "--max-errors", "--checksum", "--inplace", "-L", "--dereference", "-x"),
    *("--one-file-system", "--chown"),
)


def test_defaults() -> None:
    assert parse(["a", "b"]) == CopyArguments(
        sources=(b"a",),
        destination=b"b",
        is_recorded=True,
        checkpoint=CheckpointSettings(),
        changeable_fields=changeable_fields(PCOPY.options),
    )
    assert (parse(["a", "b"]).options, parse(["a", "b"]).copy_options) == (Options(), CopyOptions())


def test_options_and_operands_in_any_order() -> None:
    arguments = parse(["a", "-n2", "b", "-ru", "-Tvv", "c", "--no-sync", "-q"])
    assert arguments.sources == (b"a", b"b")
    assert arguments.destination == b"c"
    assert (arguments.ranks, arguments.output.verbose, arguments.output.quiet) == (2, 2, True)
    assert arguments.no_target_directory
    assert arguments.copy_options.existing == "newer"
    assert not arguments.options.sync


def test_archive_letters_have_no_effect() -> None:
    assert parse(["-arR", "--archive", "--recursive", "a", "b"]) == parse(["a", "b"])
    assert PVERIFY.parse_command_line(["-rqR", "--recursive", "a", "b"]) == PVERIFY.parse_command_line(["-q", "a", "b"])


@pytest.mark.parametrize("letters", ["-aHAXS", "-p -d -P -l -g -o -D", "-r -R", "-H -A -X -S", "-pdPltgoDHAXSar"])
def test_letters_of_cp_and_rsync_for_the_defaults_are_accepted(letters: str) -> None:
    assert parse([*letters.split(), "a", "b"]) == parse(["a", "b"])
    assert parse(["--resume=job", *letters.split()]).job_request.resume == b"job"
    bundle = parse([f"-{letters.replace('-', '').replace(' ', '')}ux", "a", "b"])
    assert bundle == parse(["-u", "-x", "a", "b"])


def test_option_t_of_cp_is_refused_outside_a_bundle() -> None:
    """``cp -t DIR SRC`` would copy in the wrong direction. In a bundle it is rsync's -t: times are preserved by
    default.
    """
    assert "-t: write DST last: pcopy [options] SRC... DST" in refusal("-t", "dir", "file")
    assert parse(["-rlpt", "a", "b"]) == parse(["--", "a", "b"])
    assert parse(["--", "-t", "b"]).sources == (b"-t",)


def test_options_of_cp_and_rsync_are_refused_with_advice() -> None:
    help_text = help_or_version(["--help"])
    assert help_text is not None
    for option, advice in PCOPY_ADVICE.items():
        assert f"{option}: {advice}" in refusal(option, "a", "b")
        assert not re.search(rf" {re.escape(option)}\b(?!-)", help_text), option
        for named in re.findall(r"(?<!cp )--?[a-zA-Z][a-z-]*", advice):
            assert named in help_text, option


def test_help_shows_the_syntax_of_optional_values() -> None:
    """Either only after ``=`` or also as the next argument."""
    help_text = help_or_version(["--help"])
    assert help_text is not None
    shown = re.findall(r"^  (--[a-z]+ ?\[[^]]*\])", help_text, re.MULTILINE)
    assert shown == ["--inplace[=HOW]", "--resume [JOB|DIR]", "--discard [JOB ...]", "--progress [HOW]"]
    apart, joined = parse(["--inplace", "sequential", "a", "b"]), parse(["--inplace=sequential", "a", "b"])
    assert (apart.sources, apart.options.sequential) == ((b"sequential", b"a"), False)
    assert (joined.sources, joined.options.sequential) == ((b"a",), True)
    assert parse(["--progress", "json", "a", "b"]) == parse(["--progress=json", "a", "b"])


def test_help_option_with_paths_is_refused() -> None:
    """Users of rsync write -avh for sizes in units: status 0 would hide that nothing was copied."""
    for argv in (["-avh", "a", "b"], ["a", "b", "-h"], ["-h", "a"]):
        assert help_or_version(argv) is None
        assert PVERIFY.help_or_version_text(argv) is None
        assert "-h prints the help only without paths" in refusal(*argv)
    assert PVERIFY.help_or_version_text(["-vh", "a", "b"]) is None
    assert "-h prints the help only" in refusals.refusal(partial(PVERIFY.parse_command_line, ["-vh", "a", "b"]))
    assert help_or_version(["a", "--help", "b"]) == help_or_version(["--help"])
    assert help_or_version(["-h"]) == help_or_version(["-qh"])


def test_progress_value_is_optional() -> None:
    assert parse(["--progress", "a", "b"]) == parse(["a", "b"])
    assert (
        parse(["a", "b", "--progress"])
        == parse(["a", "--progress", "-q", "b"])._replace(output=OutputOptions())
        == parse(["a", "b"])
    )
    assert parse(["--progress", "json", "a", "b"]).output.progress == "json"
    assert parse(["--progress", "jsonl", "a", "b"]).sources == (b"jsonl", b"a")
    assert parse(["--progress", "--", "json", "b"]).sources == (b"json",)
    assert parse(["--", "--progress", "b"]).sources == (b"--progress",)
    assert parse(["--resume", "--progress"]).job_request.resume == b""
    assert (verify_request := PVERIFY.parse_command_line(["--progress", "a", "b"])).paths == (b"a", b"b")
    assert verify_request.output.progress == "auto"


def test_names_are_bytes() -> None:
    assert parse([b"\xff\n", "\udcfe"])[:2] == ((b"\xff\n",), b"\xfe")
    assert parse(["--errors", b"\xff.jsonl", "a", "b"]).output.errors == b"\xff.jsonl"


def test_arguments_after_two_dashes_are_paths() -> None:
    assert parse(["-q", "--", "-a", "--version", "--", "b"])[:2] == ((b"-a", b"--version", b"--"), b"b")
    assert parse(["-", "b"]).sources == (b"-",)


def test_values() -> None:
    tuning = ["--existing=changed", "--modify-window", "2", "--chunk-size", "1.5G", "--block-size", "64K"]
    telling = ["--errors", "e", "--json", "--progress", "plain", "--progress-interval", "0.5", "--max-errors", "9"]
    arguments = parse([*tuning, *telling, "a", "b"])
    assert arguments.options == Options(block_size=65536, max_errors=9)
    assert arguments.copy_options == CopyOptions(existing="changed", modify_window=2, chunk_size=3 << 29)
    assert (arguments.output.errors, arguments.output.json) == (b"e", True)
    assert (arguments.output.progress, arguments.output.interval) == ("plain", 0.5)
    assert parse(["--chunk-size", "auto", "a", "b"]).copy_options.chunk_size == 0


def test_last_option_on_existing_files_counts() -> None:
    assert parse(["-u", "--existing", "skip", "a", "b"]).copy_options.existing == "skip"
    assert parse(["--existing", "skip", "-u", "a", "b"]).copy_options.existing == "newer"


def test_checksum_implies_the_changed_policy() -> None:
    for argv in (["--checksum"], ["--checksum", "--existing", "changed"], ["--existing", "changed", "--checksum"]):
        options = parse([*argv, "a", "b"]).copy_options
        assert (options.existing, options.checksum) == ("changed", True)
    assert not parse(["--existing", "changed", "a", "b"]).copy_options.checksum


@pytest.mark.parametrize("policy", ["newer", "skip", "fail", "replace"])
def test_checksum_excludes_other_policies(policy: str) -> None:
    assert f"--existing {policy}" in refusal("--checksum", "--existing", policy, "a", "b")
    if policy == "newer":
        assert "--checksum" in refusal("-u", "--checksum", "a", "b")


def test_bundled_letters_are_parsed() -> None:
    arguments = parse(["-axL", "a", "b"])
    assert arguments.options.one_file_system and arguments.copy_options.dereference
    assert parse(["-a", "--one-file-system", "--dereference", "a", "b"]) == arguments
    assert help_or_version(["-Lxh"]) is not None
    assert parse(["--inplace", "a", "b"]).copy_options.inplace


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("3:4", (3, 4)),
        ("3", (3, -1)),
        (":4", (-1, 4)),
        ("+3:+4", (3, 4)),
        ("root:root", (0, 0)),
        ("root:", (0, 0)),
        ("0:", (0, 0)),
        ("4294967294", (4294967294, -1)),
    ],
)
def test_owners(text: str, meant: tuple[int, int]) -> None:
    require_root("name others")
    preserve = parse(["--chown", text, "--no-preserve", "mode", "a", "b"]).options.preserve
    assert preserve == PreservedMetadataKinds(mode=False, chown=meant)


def test_preserve_options_are_combined() -> None:
    assert preserved() == ALL
    assert preserved("--preserve", "mode,timestamps") == {"mode", "timestamps"}
    assert preserved("--preserve=mode", "--preserve=acl") == {"mode", "acl"}
    assert preserved("--no-preserve", "xattr,acl") == ALL - {"xattr", "acl"}
    assert preserved("--preserve=all", "--no-preserve=links") == ALL - {"links"}
    assert preserved("--no-preserve=links", "--preserve=mode") == {"mode"}
    assert preserved("--no-preserve=all") == set()
    assert preserved("--preserve=mode,links", "--no-preserve=mode", "--preserve=sparse") == {"links", "sparse"}


def test_unknown_attribute_is_refused_with_the_list_of_known_ones() -> None:
    text = refusal("--preserve", "mode,colour", "a", "b")
    assert "colour" in text
    for word in (*PRESERVABLE_METADATA, "all"):
        assert word in text
    assert "''" in refusal("--no-preserve=", "a", "b")


@pytest.mark.parametrize(
    ("argv", "culprit"),
    [
        ([], "SRC and DST are missing"),
        (["a"], "DST is missing after a"),
        (["-0", "a", "b"], "-0 says how the paths in --from end"),
        (["--exlude", "a", "b"], "unknown option --exlude; the nearest is --exclude;"),
        (["--verfy", "a", "b"], "unknown option --verfy; the nearest is --verify;"),
        (["--modify-windows=1", "a", "b"], "unknown option --modify-windows; the nearest is --modify-window;"),
        (["--retries", "3", "a", "b"], "unknown option --retries; see pcopy"),
        (["--restart", "a", "b"], "unknown option --restart; see pcopy"),
        (["--newer-than", "-7d", "a", "b"], "--newer-than: -7d: ages count back from now: write 7d"),
        (["--existing", "chnaged", "a", "b"], "skip, fail; the nearest is changed;"),
        (["--preserve", "mode,time", "a", "b"], "all; the nearest is timestamps;"),
        (["--frobnicate", "a", "b"], "unknown option --frobnicate; see pcopy"),
        (["-apz", "a", "b"], "-z in -apz: pcopy does not compress"),
        (["-za", "a", "b"], "-z in -za: pcopy does not compress"),
        (["-p4", "a", "b"], "-4 in -p4: an unknown option"),
        (["-avn", "a", "b"], "-n/--ranks: a: not a number of processes (rsync's -n is --dry-run here;"),
        (["--progress=c", "a", "b"], "c: not one of auto"),
        (["--progress", "none", "b"], "DST is missing after b"),
        (["--dele=x", "a", "b"], "unknown option --dele;"),
        (["--prog", "none", "a", "b"], "unknown option --prog;"),
        (["-y", "a", "b"], "unknown option -y"),
        (["-1", "a", "b"], "unknown option -1"),
        (["-\x1b[1m x", "a", "b"], r"unknown option -\x1b[1m x"),
        (["-n"], "-n/--ranks"),
        (["-n", "0", "a", "b"], "whole number of 1 or more"),
        (["--in-flight", "0", "a", "b"], "--in-flight: 0: neither auto nor a number from 1 to 64"),
        (["--in-flight", "65", "a", "b"], "--in-flight: 65: neither auto nor a number from 1 to 64"),
        (["--in-flight", "many", "a", "b"], "--in-flight: many: neither auto nor"),
        (["-n", "-1", "a", "b"], "whole number of 1 or more"),
        (["-n", "two", "a", "b"], "two"),
        (["--max-errors", "-1", "a", "b"], "whole number of 0 or more"),
        (["--chunk-size", "-5M", "a", "b"], "-5M: not a size"),
        (["--oplimit", str(1 << 63), "a", "b"], "too large: write a number of 9223372036854775807 or less"),
        (["--checkpoint-interval", "9" * 5000, "a", "b"], "too large: write 1000000000 seconds or less"),
        (["--modify-window", "0.5", "a", "b"], "--modify-window"),
        (
            ["--existing", "update", "a", "b"],
            "--existing: update: not one of replace, changed, newer, skip, fail (rsync's",
        ),
        (["--progress=jsonl", "a", "b"], "jsonl: not one of auto"),
        (["--progress-interval", "0", "a", "b"], "seconds above 0"),
        (["--progress-interval", "nan", "a", "b"], "seconds above 0"),
        (["--chunk-size", "0", "a", "b"], "at least one byte"),
        (["--chunk-size", "12Q", "a", "b"], "12Q: not a size"),
        (["--block-size", "32K", "a", "b"], "power of two of 64 KiB or more"),
        (["--block-size", "96K", "a", "b"], "power of two of 64 KiB or more"),
        (["--block-size", "auto", "a", "b"], "not a size"),
        (["--json=3", "a", "b"], "takes no value"),
        (["--chown", ":", "a", "b"], "no user and no group is named"),
        (["--chown", "root:nobody-of-that-name", "a", "b"], "there is no group nobody-of-that-name"),
        (["--chown", "4294967295", "a", "b"], "there is no user 4294967295"),
        (["--chown", "a\nb", "a", "b"], "there is no user"),
    ],
)
def test_refused_command_changes_nothing_and_names_the_cause(argv: list[str], culprit: str) -> None:
    text = refusal(*argv)
    assert culprit in text
    assert "--help" in text


@pytest.mark.parametrize("option", ["--sparse-limit", "--strip-components", "--max-errors", "--oplimit"])
def test_ptar_reads_a_negative_number_as_a_value(option: str) -> None:
    """ptar has an option -0, so that argparse takes a dash and a digit for an option."""
    assert f"{option}: -1: not a whole number" in refusals.refusal(
        partial(PTAR.parse_command_line, [option, "-1", "-tf", "a"])
    )


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        ("x", "write CLASS:FILE, where CLASS is common, only-a, only-b, differ or differ-in-PROPERTY"),
        ("", "write CLASS:FILE, where CLASS is"),
        ("common", "write common:FILE"),
        ("common:", "write common:FILE"),
        ("common:lists/", "FILE is not the name of a file: write common:FILE"),
        (
            "only:x",
            "'only' is not one of common, only-a, only-b, differ or differ-in-PROPERTY; the nearest is only-",
        ),
    ],
)
def test_pverify_output_requires_a_class_and_a_file(value: str, reported: str) -> None:
    said = refusals.refusal(partial(PVERIFY.parse_command_line, ["--compare", "all", "--output", value, "a", "b"]))
    assert reported in said and said.startswith("--output: ") and "\n" not in said


def test_help_fits_80_columns_and_lists_every_option() -> None:
    text = help_or_version(["--help"])
    assert text is not None
    assert help_or_version(["-rh"]) == help_or_version(["-h"])
    assert max(map(len, text.splitlines())) <= 80
    for option in OPTIONS:
        assert f" {option}" in text
    assert "examples:" in text
    assert "SUPPRESS" not in text


def test_help_and_version_need_no_paths() -> None:
    assert help_or_version(["a", "--version"]) == f"pcopy {__version__} (backend {backend_name()})"
    assert help_or_version(["-h"]) == help_or_version([b"-h"]) == help_or_version(["-hq"])
    assert help_or_version(["--help"]) == help_or_version([b"--help"]) != help_or_version(["-h"])
    assert help_or_version(["a", "-n", "2", "b", "-q"]) is None
    assert help_or_version(["--", "--version", "-h"]) is None


def test_version_is_printed_without_loading_the_parser() -> None:
    program = """
import sys
from pcopy.cli.pcopy import help_or_version
print(help_or_version(["--version"]))
print({"argparse", "rich", "inspect", "dataclasses", "mpi4py", "json"} & set(sys.modules), file=sys.stderr)
"""
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stderr == "set()\n"
    assert done.stdout == f"pcopy {__version__} (backend python)\n", "-S hides the package that the one in C needs"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("12B", 12),
        ("64K", 65536),
        ("64k", 65536),
        ("1KiB", 1024),
        ("1KB", 1000),
        ("1kb", 1000),
        ("1.5G", 3 << 29),
        ("1.5 GiB", 3 << 29),
        ("2TB", 2 * 10**12),
        ("4MiB", 4 << 20),
        (".5M", 1 << 19),
        ("1.0001K", 1024),
    ],
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "K", "-1", "1e5", "1_000", "0x10", "1Ki", "1.2.3", ".", "nan", "inf", "1 2", "٣", "9" * 400 + ".5T"]
)
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


def test_sizes_and_times_are_formatted() -> None:
    sizes = [format_size(size) for size in (0, 999, 1000, 1536, 10_200_000, 3 << 38, 10 << 40, 1 << 70)]
    assert sizes == ["0 B", "999 B", "0.98 KiB", "1.50 KiB", "9.73 MiB", "768 GiB", "10.0 TiB", "1024 EiB"]
    assert [format_seconds(span) for span in (0.123, 12.34, 59.96, 3723)] == ["0.12 s", "12.3 s", "1:00", "1:02:03"]
    assert [format_running_clock(span) for span in (7, 754, 3723, 183845)] == [
        "0:07",
        "12:34",
        "1:02:03",
        "2 d 03:04:05",
    ]
