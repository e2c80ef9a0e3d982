"""Configuration files combined with jobs and with any command, and their display by --show-config."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pcopy.cli.configuration import OptionRules
from pcopy.cli.pcopy import PCOPY
from pcopy.cli.prm import PRM
from pcopy.cli.program import ProgramCommandLine
from pcopy.cli.pstripe import PSTRIPE
from pcopy.cli.ptar import PTAR
from pcopy.cli.pverify import PVERIFY
from tests.cli.configured import Files, files, parse, shown

__all__ = ["files"]


class TestJobs:
    def test_resumed_job_ignores_files_except_for_run_options(self, files: Files) -> None:
        """The stored options of the job count, not today's files, except for options on how the job runs."""
        files(
            user="ranks: 3\nexisting: skip\nverify: true\nhash: none\ncheckpoint: /other\nmax-errors: 5\n"
            "no-sync: true\nspool: /tmp\nerrors: e.jsonl\nstripe-table: {1G: 8}\nolder-than: 7d\n"
        )
        found = PCOPY.parse_command_line(["--resume", "job", "--termination", "ring"])
        assert (found.job_request.resume, found.job_request.given_options) == (b"job", {"termination"})
        assert (found.ranks, found.output.errors, found.checkpoint.spool) == (3, b"e.jsonl", b"/tmp")
        assert (found.checkpoint.directory, found.copy_options.existing) == (b"", "replace")
        for words in (["--jobs"], ["--discard", "x"], ["--discard", "--older-than", "7d"]):
            assert PCOPY.parse_command_line(words).checkpoint.directory == b""

    def test_launcher_overrides_the_number_of_ranks(self, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
        files(user="ranks: 3\nmax-errors: 4\n")
        monkeypatch.setenv("PMI_SIZE", "2")
        assert (parse().ranks, parse().options.max_errors) == (0, 4)


SAMPLES = {
    "SIZE": "1M",
    "RATE": "1M",
    "N": "3",
    "SECONDS": "5",
    "WHEN": "7d",
    "LIST": "mode",
    "P": "x",
    "FILE": "f.json",
}
SAMPLES |= {"DIR": "dir", "TABLE": "1,1G=8", "USER:GROUP": "':0'", "WHAT": "changed", "HOW": "4"}
"""A value for each type of option, by the name of the value in the help."""

ANYHOW: tuple[list[str], ...] = (
    *(
        [],
        ["--verify"],
        ["--repair"],
        ["--checksum"],
        ["-u"],
        ["--existing", "skip"],
        ["--no-sync"],
        ["--hash", "none"],
    ),
    *(["--dry-run"], ["--mirror"], ["--delete"], ["--stripe", "auto"], ["--stripe", "4"], ["--inplace"], ["-q", "-vv"]),
    *(
        ["--resume", "j"],
        ["--jobs"],
        ["--discard", "j"],
        ["--discard", "--older-than", "3d"],
    ),
)
"""Arguments that users write while files set all options."""


def all_keys(program: ProgramCommandLine, *without: str) -> str:
    """A file with each key that the program accepts, except some."""
    lines = []
    for option in program.options:
        if not option.key or not option.in_files or option.key in without:
            continue
        value = "true" if not option.value else list(option.choices)[-1:] or [SAMPLES[option.value]]
        lines.append(f"{option.key}: {value if isinstance(value, str) else value[0]}\n")
    return "".join(lines)


class TestAnyCommand:
    @pytest.mark.parametrize("words", ANYHOW, ids=" ".join)
    @pytest.mark.parametrize("side", [0, 1])
    def test_any_command_is_accepted_whatever_files_set(
        self, files: Files, area: Path, words: list[str], side: int
    ) -> None:
        """Files set defaults. Options given on the command line are never refused because of them."""
        (area / "f.json").write_text("*.o\n")
        same = {"existing", "update", "checksum", "mirror"}
        pairs = [([one], rest) for one, rest in OptionRules(PCOPY.options).conflicts if not {one, *rest} <= same]
        without = {name.partition("=")[0] for pair in pairs for name in pair[side]}
        files(user=all_keys(PCOPY, "update", ("existing", "checksum")[side], *without))
        operands = [] if words[:1] in (["--resume"], ["--jobs"], ["--discard"], ["--control"]) else ["a/", "b"]
        PCOPY.parse_command_line([*words, *operands])

    @pytest.mark.parametrize("program", [PVERIFY, PRM, PSTRIPE], ids=lambda program: program.name)
    def test_commands_of_other_programs_are_accepted_whatever_files_set(
        self, files: Files, area: Path, program: ProgramCommandLine
    ) -> None:
        (area / "f.json").write_text("*.o\n")
        files(user=all_keys(program))
        for words in (["a", "b"], *([["--create", "s", "a"]] if program is PVERIFY else [["--stripe", "auto", "a"]])):
            if "--stripe" not in words or program is PSTRIPE:
                program.parse_command_line(words)


COMMANDS = (
    ["-u", "-vv", "-n", "3", "--chunk-size", "4M"],
    ["--no-preserve", "mode", "--preserve", "acl", "--no-preserve", "acl"],
    ["--preserve=mode,acl", "--no-preserve", "acl", "--checksum", "--verify"],
    ["--stripe=-1", "--errors", 'a "b": #c', "--chown", ":0"],
    ["--stripe", "auto", "--stripe-table", "1,1G=8", "--progress", "--progress-interval", "0.5"],
    ["--existing", "changed", "--hash", "blake3", "--max-errors", "7", "-q", "--json", "-av"],
    ["--exclude", "*.o", "--exclude", ".snapshot", "--include", "a b", "--larger-than", "1M"],
    ["--exclude", "a", "--include", "b", "--exclude", "!c", "--exclude", "d: e"],
    ["--checkpoint", "none", "--memory", "1.5G", "--checkpoint-interval", "3", "--termination=ring"],
)


class TestShowConfig:
    @pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
    @pytest.mark.parametrize("lower", ["", "direct: true\nexisting: skip\nno-preserve: [xattr]\nstripe: 4\n"])
    def test_shown_configuration_is_equivalent(self, files: Files, area: Path, words: list[str], lower: str) -> None:
        files(lower)
        text = shown(*words)
        assert isinstance(yaml.safe_load(text), dict)
        wanted = parse(*words)
        (area / "again.yaml").write_text(text)
        found = parse("--config", "again.yaml")
        telling = found.output._replace(filter_origins=wanted.output.filter_origins)  # their origins differ
        assert found._replace(output=telling) == wanted
        again = shown("--config", "again.yaml")
        assert _values(again) == _values(text)

    def test_each_shown_value_has_its_origin(self, files: Files, area: Path) -> None:
        files("direct: true\nranks: 2\n", "\nranks: 3\npcopy:\n  preserve:\n  - mode\n  - acl\nfsync: false\n")
        lines = shown("--verify").splitlines()
        assert lines[:2] == [f"# {area}/system.yaml: read", f"# {area}/user/pcopy.yaml: read"]
        user = f"{area}/user/pcopy.yaml"
        for line in (
            *(f"direct: true  # {area}/system.yaml:1", f"ranks: 3  # {user}:2", f"  - mode  # {user}:4"),
            *(f"fsync: false  # {user}:7", "verify: true  # command line", "repair: false  # default"),
            *("block-size: 4M  # default", "# errors: not set", "in-flight: auto  # default"),
        ):
            assert line in lines, line
        assert lines.index("verify: true  # command line") < lines.index("block-size: 4M  # default")

    @pytest.mark.parametrize("program", [PCOPY, PVERIFY, PRM, PSTRIPE, PTAR], ids=lambda program: program.name)
    def test_shown_defaults_are_those_of_the_program(
        self, files: Files, area: Path, program: ProgramCommandLine
    ) -> None:
        files()
        text = shown(program=program)
        (area / "again.yaml").write_text(text)
        words = ["a", "b"] if program is not PTAR else ["-c", "-f", "a", "b"]
        assert program.parse_command_line(["--config", "again.yaml", *words]) == program.parse_command_line(words)

    def test_ineffective_options_are_reported(self, files: Files, area: Path) -> None:
        files("stripe-table: {1G: 8}\nno-sync: true\n")
        lines = shown("--verify").splitlines()
        for name, line in (("stripe-table", 1), ("no-sync", 2)):
            assert f"# {name}: has no effect with the other options  # {area}/system.yaml:{line}" in lines


def _values(text: str) -> list[str]:
    """Return the lines without their comments."""
    return [line.rpartition("  # ")[0] for line in text.splitlines() if not line.startswith("#")]
