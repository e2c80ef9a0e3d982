"""Files of options: what counts, what is refused, and what --show-config tells. Expected values are written by hand."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pcopy.cli import program as cli_program
from pcopy.cli.config_keys import BY_HAND, BY_HAND_OF
from pcopy.cli.configuration import AGAINST
from pcopy.cli.pcopy import PCOPY
from pcopy.cli.prm import PRM
from pcopy.cli.program import Program
from pcopy.cli.pstripe import PSTRIPE
from pcopy.cli.pverify import PVERIFY
from pcopy.fsio.preserve import ATTRIBUTES
from pcopy.tools.arguments import CopyArguments
from tests.support import refusals
from tests.support.users import NOBODY, require_root

Files = Callable[..., None]


@pytest.fixture
def files(area: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Writes the machine's file, the user's, and ``more.yaml``, which is named relative to the working directory."""
    (area / "user").mkdir()
    monkeypatch.setattr(cli_program, "SYSTEM_FILE", os.fsencode(area / "system.yaml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(area / "user"))
    monkeypatch.chdir(area)

    def write(system: str | None = None, user: str | None = None, more: str | None = None) -> None:
        for name, text in (("system.yaml", system), ("user/pcopy.yaml", user), ("more.yaml", more)):
            (area / name).unlink(missing_ok=True)
            if text is not None:
                (area / name).write_text(text)

    return write


def parse(*words: str) -> CopyArguments:
    parsed: CopyArguments = PCOPY.parse([*words, "a", "b"])
    return parsed


def preserved(*words: str) -> set[str]:
    preserve = parse(*words).options.preserve
    return {name for name in ATTRIBUTES if getattr(preserve, name)}


def refusal(*words: str, program: Program = PCOPY) -> str:
    return refusals.refusal(lambda: program.parse([*words, "a", "b"]))


def shown(*words: str, program: Program = PCOPY) -> str:
    text = program.answer(["--show-config", *words])
    assert text is not None
    return text


class TestWhatCounts:
    def test_a_higher_place_counts_before_a_lower_one(self, files: Files) -> None:
        files("ranks: 1\nmax-errors: 1\nchunk-size: 1M\nreflink: never\n")
        assert (parse().ranks, parse().options.max_errors, parse().options.reflink) == (1, 1, "never")
        files("ranks: 1\nmax-errors: 1\nchunk-size: 1M\nreflink: never\n", "ranks: 2\nmax-errors: 2\nchunk-size: 2M\n")
        files(
            "ranks: 1\nmax-errors: 1\nchunk-size: 1M\nreflink: never\n",
            "ranks: 2\nmax-errors: 2\nchunk-size: 2M\n",
            "ranks: 3\nmax-errors: 3\n",
        )
        found = parse("--config", "more.yaml", "-n", "4")
        options = found.options
        assert (found.ranks, options.max_errors, options.chunk_size, options.reflink) == (4, 3, 2 << 20, "never")
        assert parse().ranks == 2

    def test_values_of_each_kind(self, files: Files) -> None:
        files(
            user="direct: true\nfsync: false\nverbose: 2\nblock-size: 128K\nprogress-interval: 0.5\n"
            "stripe: auto\nstripe-table: {0: 1, 1G: 8, 10G: 24}\npreserve: [mode, acl]\nerrors: 'a b.jsonl'\n"
            "existing: newer\nchown: ':0'\nspool: dir\ncheckpoint: none\nin-flight: auto\n"
        )
        found = parse()
        options = found.options
        assert (options.direct, options.fsync, options.block_size) == (True, False, 128 << 10)
        assert (options.stripe, options.stripe_table) == ("auto", "0=1,1G=8,10G=24")
        assert (found.telling.verbose, found.telling.interval, found.telling.errors) == (2, 0.5, b"a b.jsonl")
        assert preserved() == {"mode", "acl"}
        assert (options.existing, options.preserve.chown, found.is_kept) == ("newer", (-1, 0), False)
        assert found.keeping.spool == os.path.join(os.getcwdb(), b"dir")
        files(user="stripe: auto\nstripe-table: '1,1G=8'\npreserve: mode,acl\n")
        assert (parse().options.stripe_table, preserved()) == ("1,1G=8", {"mode", "acl"})

    def test_false_takes_back_what_a_lower_file_sets(self, files: Files) -> None:
        files("direct: true\nno-sync: true\n", "direct: false\n")
        assert (parse().options.direct, parse().options.sync) == (False, False)
        assert parse("--direct").options.direct

    def test_the_command_line_takes_the_place_of_lists(self, files: Files) -> None:
        files("no-preserve: [ownership]\n", None)
        assert preserved() == set(ATTRIBUTES) - {"ownership"}
        assert preserved("--no-preserve", "xattr") == set(ATTRIBUTES) - {"xattr"}
        assert preserved("--preserve", "mode") == {"mode"}
        files("no-preserve: [ownership]\n", "preserve: [mode, ownership]\n")
        assert preserved() == {"mode", "ownership"}

    def test_patterns_of_the_command_line_come_after_those_of_files(self, files: Files) -> None:
        files("exclude: ['*.o', .snapshot]\n", "include: keep.o\nexclude: [a, include: b, c]\n")
        assert parse().options.select.patterns == (b"!keep.o", b"a", b"!b", b"c")
        assert parse("--include", "a", "--exclude", "d").options.select.patterns[4:] == (b"!a", b"d")
        files("exclude: ['*.o', .snapshot]\n", "include: keep.o\n")
        assert parse().options.select.patterns == (b"*.o", b".snapshot", b"!keep.o")
        files("exclude: ['*.o', .snapshot]\n", "exclude: []\n")
        assert parse().options.select.patterns == ()

    def test_what_was_said_by_another_name_counts_too(self, files: Files) -> None:
        files(user="existing: skip\nverbose: 2\n")
        assert parse("-u").options.existing == "newer"
        assert parse("-v").telling.verbose == 1
        assert parse("--checksum").options.existing == "changed"
        files("existing: skip\n", "checksum: true\n")
        assert (parse().options.existing, parse().options.checksum) == ("changed", True)
        assert (parse("-u").options.existing, parse("-u").options.checksum) == ("newer", False)

    def test_what_cannot_be_had_with_it_gives_way_to_the_command_line(self, files: Files) -> None:
        files(user="no-sync: true\nhash: none\nstripe-table: {1G: 8}\n")
        found = parse("--verify").options
        assert (found.verify, found.sync, found.hash) == (True, True, "xxh3-128")
        assert (parse().options.sync, parse().options.hash, parse().options.stripe_table) == (False, "", "")
        assert parse("--stripe", "auto").options.stripe_table == "1G=8"
        files(user="verify: true\n")
        assert not parse("--no-sync").options.verify
        assert "--no-sync leaves nothing: leave one out (verify: " in _both(files)

    def test_a_file_may_be_empty(self, files: Files) -> None:
        files("", "# nothing\n", "---\n...\n")
        assert parse() == parse("--checkpoint-interval", "60")


def _both(files: Files) -> str:
    files(user="verify: true\nno-sync: true\n")
    return refusal()


class TestPrograms:
    def test_a_programs_own_mapping_counts_for_it_alone(self, files: Files) -> None:
        files(user="ranks: 2\npverify: {ranks: 3, hash: blake3}\nprm:\n  ranks: 4\nverify: true\nmax-errors: 0\n")
        assert (parse().ranks, parse().options.verify, parse().options.hash) == (2, True, "xxh3-128")
        assert (PVERIFY.parse(["a", "b"]).ranks, PVERIFY.parse(["a", "b"]).hash) == (3, "blake3")
        assert (PRM.parse(["a"]).ranks, PRM.parse(["a"]).max_errors) == (4, 0)

    def test_a_higher_file_counts_before_a_programs_own_mapping_of_a_lower_one(self, files: Files) -> None:
        files("pcopy: {ranks: 3}\n", "ranks: 2\n")
        assert parse().ranks == 2

    def test_pstripe_changes_no_layouts_because_of_a_file(self, files: Files) -> None:
        files(user="stripe: auto\nstripe-table: {1G: 8}\n")
        assert (parse().options.stripe, PSTRIPE.parse(["a"]).stripe) == ("auto", "")
        assert PSTRIPE.parse(["--stripe", "auto", "a"]).stripe_table == "1G=8"
        files(user="pstripe: {stripe: auto}\n")
        assert "pcopy.yaml:1: stripe: no file sets this" in refusal(program=PSTRIPE)

    def test_what_only_another_program_takes_is_told(self, files: Files) -> None:
        files(user="\nhash: none\n")
        assert parse().options.hash == ""
        text = refusal(program=PVERIFY)
        assert "pcopy.yaml:2: hash: none: not one of xxh3-128, blake3" in text
        assert "pcopy takes it: put it below pcopy:" in text


REFUSED = {
    "chunk_size: 4M": "chunk_size: there is no such key; the nearest is chunk-size",
    "Verify: true": "Verify: there is no such key; the nearest is verify",
    "--direct: true": "--direct: there is no such key; the nearest is direct",
    "nonsense: 1": "nonsense: there is no such key; see pcopy --show-config",
    '"a\\eb": 1': "a\\x1bb: there is no such key",
    "pcpoy: {ranks: 2}": "pcpoy: there is no such key; the nearest is pcopy",
    "pcopy: {chunksize: 4M}": "chunksize: there is no such key; the nearest is chunk-size",
    "compress: true": "compress: pcopy does not compress; leave it out",
    "chunk-size: 10GiBs": "chunk-size: 10GiBs: not a size (like 65536, 64K, 1.5G, 4MiB or 10MB)",
    "block-size: 3M": "block-size: 3M: not a power of two of 64 KiB or more",
    "ranks: two": "ranks: two: not a number of processes",
    "ranks: [1, 2]": "ranks: takes one value, and no list",
    "ranks: {a: b}": "ranks: takes a value, and neither a mapping nor a list within it",
    "reflink: maybe": "reflink: maybe: not one of auto, never, always",
    "existing: sometimes": "existing: sometimes: not one of replace, changed, newer, skip, fail",
    "update: true": "update: write existing: newer",
    "preserve: [mode, colour]": "preserve: colour: there is no 'colour' to preserve, only mode, ownership",
    "preserve: []": "preserve: an empty list; for none of them write no-preserve: all",
    "preserve: [[mode]]": "preserve: takes a value, and neither a mapping nor a list within it",
    "preserve: [{errors: x}]": "preserve: errors: only preserve, no-preserve may stand in the list",
    "verify: yes": "verify: write true or false, not yes",
    "verify: 'true'": "verify: write true or false, not true",
    "verify: [true]": "verify: write true or false, and nothing else",
    "verbose: 3": "verbose: write 0, 1 or 2, not 3",
    "errors:": "errors: has no value: write one, or leave the line out",
    "errors: ~": "errors: has no value: write one, or leave the line out",
    "errors: ~/errors": "errors: ~/errors: only a shell knows what ~ is; write the path in full",
    "pcopy: true": "pcopy: is not a mapping of keys to values",
    "yes: true": "yes: no file sets this; write --yes on the command line",
    "resume: job": "resume: no file sets this; write --resume on the command line",
    "manifest: file": "manifest: no file sets this; write --manifest on the command line",
    "config: other.yaml": "config: no file sets this; write --config on the command line",
    "first: 1": "the key first comes twice",
    "pcopy: {ranks: 1, ranks: 2}": "the key ranks comes twice",
    "ranks: &a 1": "it uses YAML's anchors (&)",
    "ranks: *a": "it uses YAML's aliases",
    "ranks: !!int 1": "it uses YAML's tags (!)",
    "x: !!python/object/apply:os.system [false]": "it uses YAML's tags (!)",
    "{": "it is not YAML: ",
    "a: b: c": "it is not YAML: mapping values are not allowed in this context",
}


class TestWhatIsRefused:
    @pytest.mark.parametrize("line", REFUSED)
    def test_with_file_line_and_key(self, files: Files, area: Path, line: str) -> None:
        first = "first: 1\n" if line.startswith("first") else "# pcopy's options\n"
        files(user=f"{first}\n{line}\n")
        text = refusal()
        assert re.search(rf"^{re.escape(str(area))}/user/pcopy\.yaml:[34]: ", text)
        assert REFUSED[line] in text
        assert "--help" not in text

    def test_a_text_that_is_no_mapping(self, files: Files) -> None:
        for text in ("- ranks\n", "ranks\n", "ranks: 1\n--- \nranks: 2\n", "\x00"):
            files(user=text)
            assert "pcopy.yaml" in refusal()

    def test_deep_and_large_texts_end_in_a_line(self, files: Files) -> None:
        files(user=f"ranks: {'[' * 5000}1{']' * 5000}\n")
        assert re.search("nested more than 16 deep|maximum nesting depth", refusal())  # the library may have its own
        files(user="# " + "x" * (1 << 20) + "\n")
        assert "has more than 1 MiB" in refusal()

    def test_a_file_that_is_named_has_to_be_there(self, files: Files, area: Path) -> None:
        files()
        assert refusal("--config", "no.yaml") == "no.yaml: does not exist; check the name after --config"
        assert "is no regular file" in refusal("--config", ".")
        os.mkfifo(area / "fifo")
        assert "is no regular file" in refusal("--config", "fifo")
        (area / "user/pcopy.yaml").symlink_to("nowhere")
        assert "symbolic link that leads nowhere" in refusal()

    def test_no_user_without_a_home(self, files: Files, monkeypatch: pytest.MonkeyPatch, area: Path) -> None:
        """A path that is not absolute is ignored, as the XDG specification wants it."""
        files("ranks: 3\n", "ranks: 2\n")
        monkeypatch.setenv("XDG_CONFIG_HOME", "user")
        monkeypatch.setenv("HOME", str(area / "nobody"))
        assert parse().ranks == 3
        (area / "nobody/.config").mkdir(parents=True)
        (area / "nobody/.config/pcopy.yaml").write_text("ranks: 5\n")
        assert parse().ranks == 5

    def test_what_is_wrong_on_the_command_line_is_said_first(self, files: Files) -> None:
        files(user="nonsense: 1\n")
        assert "unknown option --nonsense" in refusal("--nonsense")


class TestWhoseFiles:
    """As root; whoever else runs the program decides for himself what he reads."""

    @pytest.fixture(autouse=True)
    def as_root(self) -> None:
        require_root("be root")

    def test_root_takes_it_from_nobody_else(self, files: Files, area: Path) -> None:
        files(user="ranks: 2\n")
        assert parse().ranks == 2
        os.chown(area / "user/pcopy.yaml", NOBODY, NOBODY)
        assert f"user/pcopy.yaml belongs to user {NOBODY}, and root takes" in refusal()

    @pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
    def test_nobody_else_may_write_to_it(self, files: Files, area: Path, mode: int) -> None:
        files(user="ranks: 2\n")
        (area / "user/pcopy.yaml").chmod(mode)
        assert f"user/pcopy.yaml (mode {mode:04o}), and root takes" in refusal()

    def test_nobody_else_may_put_another_in_its_place(self, files: Files, area: Path) -> None:
        files(user="ranks: 2\n")
        (area / "user").chmod(0o777)
        assert f"others may write to {area}/user (mode 0777)" in refusal()
        (area / "user").chmod(0o1777)
        assert parse().ranks == 2
        (area / "user").chmod(0o755)
        os.chown(area / "user", NOBODY, NOBODY)
        assert f"{area}/user belongs to user {NOBODY}" in refusal()

    def test_links_are_followed_where_they_are_roots_own(self, files: Files, area: Path) -> None:
        files(more="ranks: 7\n")
        (area / "link").symlink_to("between/link")
        (area / "between").mkdir()
        (area / "between/link").symlink_to(area / "more.yaml")
        assert parse("--config", "link").ranks == 7
        os.chown(area / "between/link", NOBODY, NOBODY, follow_symlinks=False)
        assert f"{area}/between/link belongs to user {NOBODY}" in refusal("--config", "link")
        os.chown(area / "between/link", 0, 0, follow_symlinks=False)
        (area / "between").chmod(0o777)
        assert f"others may write to {area}/between" in refusal("--config", "link")
        assert f"others may write to {area}/between" in refusal("--config", "between/../more.yaml")


class TestJobs:
    def test_a_job_goes_on_as_it_began(self, files: Files) -> None:
        """What the job stores counts, and not what files set today; how it works may be set."""
        files(
            user="ranks: 3\nexisting: skip\nverify: true\nhash: none\ncheckpoint: /other\nmax-errors: 5\n"
            "no-sync: true\nspool: /tmp\nerrors: e.jsonl\nstripe-table: {1G: 8}\nolder-than: 7d\n"
        )
        found = PCOPY.parse(["--resume", "job", "--termination", "ring"])
        assert (found.asked.resume, found.asked.given) == (b"job", {"termination"})
        assert (found.ranks, found.telling.errors, found.keeping.spool) == (3, b"e.jsonl", b"/tmp")
        assert (found.keeping.directory, found.options.existing) == (b"", "replace")
        for words in (["--jobs"], ["--discard", "x"], ["--discard", "--older-than", "7d"]):
            assert PCOPY.parse(words).keeping.directory == b""

    def test_a_launcher_says_how_many_ranks_there_are(self, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
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
"""A value for each kind of option, by what the help calls it."""

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
"""What users write while files set whatever can be set."""


def all_keys(program: Program, *without: str) -> str:
    """A file with each key that the program takes, but for some."""
    lines = []
    for action in program.parser()._actions:
        name = next((option[2:] for option in action.option_strings if option.startswith("--")), "")
        if not name or name in (*BY_HAND, *BY_HAND_OF.get(program.name, ()), *without):
            continue
        value = "true" if action.nargs == 0 else list(action.choices or [])[-1:] or [SAMPLES[str(action.metavar)]]
        lines.append(f"{name}: {value if isinstance(value, str) else value[0]}\n")
    return "".join(lines)


class TestAnyCommand:
    @pytest.mark.parametrize("words", ANYHOW, ids=" ".join)
    @pytest.mark.parametrize("side", [0, 1])
    def test_is_understood_whatever_files_set(self, files: Files, area: Path, words: list[str], side: int) -> None:
        """Files set what is usual. What is given by hand is wanted now, and never refused for their sake."""
        (area / "f.json").write_text("*.o\n")
        pairs = [pair[side] for pair in AGAINST if pair[0] != pair[1]]
        without = {name.partition("=")[0] for names in pairs for name in names}
        files(user=all_keys(PCOPY, "update", ("existing", "checksum")[side], *without))
        operands = [] if words[:1] in (["--resume"], ["--jobs"], ["--discard"], ["--control"]) else ["a/", "b"]
        PCOPY.parse([*words, *operands])

    @pytest.mark.parametrize("program", [PVERIFY, PRM, PSTRIPE], ids=lambda program: program.name)
    def test_of_the_other_programs_as_well(self, files: Files, area: Path, program: Program) -> None:
        (area / "f.json").write_text("*.o\n")
        files(user=all_keys(program))
        for words in (["a", "b"], *([["--create", "s", "a"]] if program is PVERIFY else [["--stripe", "auto", "a"]])):
            if "--stripe" not in words or program is PSTRIPE:
                program.parse(words)


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
    def test_what_is_shown_means_the_same(self, files: Files, area: Path, words: list[str], lower: str) -> None:
        files(lower)
        text = shown(*words)
        assert isinstance(yaml.safe_load(text), dict)
        wanted = parse(*words)
        (area / "again.yaml").write_text(text)
        assert parse("--config", "again.yaml") == wanted
        again = shown("--config", "again.yaml")
        assert _values(again) == _values(text)

    def test_each_value_has_its_origin(self, files: Files, area: Path) -> None:
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

    @pytest.mark.parametrize("program", [PCOPY, PVERIFY, PRM, PSTRIPE], ids=lambda program: program.name)
    def test_defaults_are_those_of_the_program(self, files: Files, area: Path, program: Program) -> None:
        files()
        text = shown(program=program)
        (area / "again.yaml").write_text(text)
        words = ["a", "b"]
        assert program.parse(["--config", "again.yaml", *words]) == program.parse(words)

    def test_what_does_not_count_is_told(self, files: Files, area: Path) -> None:
        files("stripe-table: {1G: 8}\nno-sync: true\n")
        lines = shown("--verify").splitlines()
        for name, line in (("stripe-table", 1), ("no-sync", 2)):
            assert f"# {name}: does not count with the other options  # {area}/system.yaml:{line}" in lines


def _values(text: str) -> list[str]:
    """The lines without their comments."""
    return [line.rpartition("  # ")[0] for line in text.splitlines() if not line.startswith("#")]
