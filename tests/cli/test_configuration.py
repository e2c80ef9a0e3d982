"""Configuration files: which value counts, and what is refused. Expected values are written by hand."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

from pcopy.cli.prm import PRM
from pcopy.cli.pstripe import PSTRIPE
from pcopy.cli.pverify import PVERIFY
from pcopy.fsio.preserve import PRESERVABLE_METADATA
from tests.cli.configured import Files, files, parse, preserved, refusal
from tests.support.users import NOBODY, require_root

__all__ = ["files"]


class TestPrecedence:
    def test_file_of_higher_precedence_overrides_a_lower_one(self, files: Files) -> None:
        files("ranks: 1\nmax-errors: 1\nchunk-size: 1M\nreflink: never\n")
        assert (parse().ranks, parse().options.max_errors, parse().copy_options.reflink) == (1, 1, "never")
        files("ranks: 1\nmax-errors: 1\nchunk-size: 1M\nreflink: never\n", "ranks: 2\nmax-errors: 2\nchunk-size: 2M\n")
        files(
            "ranks: 1\nmax-errors: 1\nchunk-size: 1M\nreflink: never\n",
            "ranks: 2\nmax-errors: 2\nchunk-size: 2M\n",
            "ranks: 3\nmax-errors: 3\n",
        )
        found = parse("--config", "more.yaml", "-n", "4")
        options, copying = found.options, found.copy_options
        assert (found.ranks, options.max_errors, copying.chunk_size, copying.reflink) == (4, 3, 2 << 20, "never")
        assert parse().ranks == 2

    def test_values_of_each_type_are_read(self, files: Files) -> None:
        files(
            user="direct: true\nfsync: false\nverbose: 2\nblock-size: 128K\nprogress-interval: 0.5\n"
            "stripe: auto\nstripe-table: {0: 1, 1G: 8, 10G: 24}\npreserve: [mode, acl]\nerrors: 'a b.jsonl'\n"
            "existing: newer\nchown: ':0'\nspool: dir\ncheckpoint: none\nin-flight: auto\n"
        )
        found = parse()
        options, copying = found.options, found.copy_options
        assert (options.direct, copying.fsync, options.block_size) == (True, False, 128 << 10)
        assert (copying.stripe, copying.stripe_table) == ("auto", "0=1,1G=8,10G=24")
        assert (found.output.verbose, found.output.interval, found.output.errors) == (2, 0.5, b"a b.jsonl")
        assert preserved() == {"mode", "acl"}
        assert (copying.existing, options.preserve.chown, found.is_recorded) == ("newer", (-1, 0), False)
        assert found.checkpoint.spool == os.path.join(os.getcwdb(), b"dir")
        files(user="stripe: auto\nstripe-table: '1,1G=8'\npreserve: mode,acl\n")
        assert (parse().copy_options.stripe_table, preserved()) == ("1,1G=8", {"mode", "acl"})

    def test_false_resets_an_option_of_a_lower_file(self, files: Files) -> None:
        files("direct: true\nno-sync: true\n", "direct: false\n")
        assert (parse().options.direct, parse().options.sync) == (False, False)
        assert parse("--direct").options.direct

    def test_command_line_replaces_lists_of_files(self, files: Files) -> None:
        files("no-preserve: [ownership]\n", None)
        assert preserved() == set(PRESERVABLE_METADATA) - {"ownership"}
        assert preserved("--no-preserve", "xattr") == set(PRESERVABLE_METADATA) - {"xattr"}
        assert preserved("--preserve", "mode") == {"mode"}
        files("no-preserve: [ownership]\n", "preserve: [mode, ownership]\n")
        assert preserved() == {"mode", "ownership"}

    def test_command_line_patterns_follow_those_of_files(self, files: Files) -> None:
        files("exclude: ['*.o', .snapshot]\n", "include: keep.o\nexclude: [a, include: b, c]\n")
        assert parse().options.select.patterns == (b"!keep.o", b"a", b"!b", b"c")
        assert parse("--include", "a", "--exclude", "d").options.select.patterns[4:] == (b"!a", b"d")
        files("exclude: ['*.o', .snapshot]\n", "include: keep.o\n")
        assert parse().options.select.patterns == (b"*.o", b".snapshot", b"!keep.o")
        files("exclude: ['*.o', .snapshot]\n", "exclude: []\n")
        assert parse().options.select.patterns == ()

    def test_long_list_is_passed_to_argparse_in_parts(self, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its time grows with the square of the number of arguments: 80,000 patterns took minutes."""
        longest = 0
        parse_known_args = ArgumentParser.parse_known_args

        def measured(parser: Any, words: Any, *rest: Any) -> Any:
            nonlocal longest
            longest = max(longest, len(words))
            return parse_known_args(parser, words, *rest)

        monkeypatch.setattr(ArgumentParser, "parse_known_args", measured)
        files(user="verbose: 1\nexclude:\n" + "".join(f"- a{n}\n- include: b{n}\n" for n in range(600)))
        found = parse("--exclude", "last", "-v").options.select.patterns
        assert found == (*(line for n in range(600) for line in (b"a%d" % n, b"!b%d" % n)), b"last")
        assert longest < 500

    def test_command_line_alias_overrides_the_option_of_a_file(self, files: Files) -> None:
        files(user="existing: skip\nverbose: 2\n")
        assert parse("-u").copy_options.existing == "newer"
        assert parse("-v").output.verbose == 1
        assert parse("--checksum").copy_options.existing == "changed"
        files("existing: skip\n", "checksum: true\n")
        assert (parse().copy_options.existing, parse().copy_options.checksum) == ("changed", True)
        assert (parse("-u").copy_options.existing, parse("-u").copy_options.checksum) == ("newer", False)

    def test_option_of_a_file_yields_to_conflicting_command_line(self, files: Files) -> None:
        files(user="no-sync: true\nhash: none\nstripe-table: {1G: 8}\n")
        found = parse("--verify")
        assert (found.copy_options.verify, found.options.sync, found.options.hash) == (True, True, "xxh3-128")
        assert (parse().options.sync, parse().options.hash, parse().copy_options.stripe_table) == (False, "", "")
        assert parse("--stripe", "auto").copy_options.stripe_table == "1G=8"
        files(user="verify: true\n")
        assert not parse("--no-sync").copy_options.verify
        assert "--no-sync the copies may not be stored yet: leave one out (verify: " in _both(files)

    def test_empty_files_are_accepted(self, files: Files) -> None:
        files("", "# nothing\n", "---\n...\n")
        assert parse() == parse("--checkpoint-interval", "60")


def _both(files: Files) -> str:
    files(user="verify: true\nno-sync: true\n")
    return refusal()


class TestPrograms:
    def test_mapping_of_a_program_applies_to_it_alone(self, files: Files) -> None:
        files(user="ranks: 2\npverify: {ranks: 3, hash: blake3}\nprm:\n  ranks: 4\nverify: true\nmax-errors: 0\n")
        assert (parse().ranks, parse().copy_options.verify, parse().options.hash) == (2, True, "xxh3-128")
        assert (PVERIFY.parse_command_line(["a", "b"]).ranks, PVERIFY.parse_command_line(["a", "b"]).options.hash) == (
            3,
            "blake3",
        )
        assert (PRM.parse_command_line(["a"]).tree.ranks, PRM.parse_command_line(["a"]).tree.options.max_errors) == (
            4,
            0,
        )

    def test_higher_file_overrides_program_mapping_of_a_lower_one(self, files: Files) -> None:
        files("pcopy: {ranks: 3}\n", "ranks: 2\n")
        assert parse().ranks == 2

    def test_pstripe_ignores_stripe_option_of_a_file(self, files: Files) -> None:
        files(user="stripe: auto\nstripe-table: {1G: 8}\n")
        assert (parse().copy_options.stripe, PSTRIPE.parse_command_line(["a"]).stripe) == ("auto", "")
        assert PSTRIPE.parse_command_line(["--stripe", "auto", "a"]).stripe_table == "1G=8"
        files(user="pstripe: {stripe: auto}\n")
        assert "pcopy.yaml:1: stripe: cannot be set by a file" in refusal(program=PSTRIPE)

    def test_option_of_another_program_is_explained(self, files: Files) -> None:
        files(user="\nhash: none\n")
        assert parse().options.hash == ""
        text = refusal(program=PVERIFY)
        assert "pcopy.yaml:2: hash: none: not one of xxh3-128, blake3" in text
        assert "pcopy accepts it: put it below pcopy:" in text


REFUSED = {
    "chunk_size: 4M": "chunk_size: there is no such key; the nearest is chunk-size",
    "Verify: true": "Verify: there is no such key; the nearest is verify",
    "--direct: true": "--direct: there is no such key; the nearest is direct",
    "nonsense: 1": "nonsense: there is no such key; see pcopy --show-config",
    '"a\\eb": 1': "a\\x1bb: there is no such key",
    "pcpoy: {ranks: 2}": "pcpoy: there is no such key; the nearest is pcopy",
    "pcopy: {chunksize: 4M}": "chunksize: there is no such key; the nearest is chunk-size",
    "devices: true": "devices: pcopy does that by default; leave it out",
    "compress: zstd": "compress: cannot be set by a file; write --compress on the command line",
    "chunk-size: 10GiBs": "chunk-size: 10GiBs: not a size (like 65536, 64K, 1.5G, 4MiB or 10MB)",
    "block-size: 3M": "block-size: 3M: not a power of two of 64 KiB or more",
    "ranks: two": "ranks: two: not a number of processes",
    "ranks: [1, 2]": "ranks: takes one value, and no list",
    "ranks: {a: b}": "ranks: takes a single value, neither a mapping nor a nested list",
    "reflink: maybe": "reflink: maybe: not one of auto, never, always",
    "existing: sometimes": "existing: sometimes: not one of replace, changed, newer, skip, fail",
    "update: true": "update: write existing: newer",
    "preserve: [mode, colour]": "preserve: colour: 'colour' is not one of mode, ownership, timestamps, links, xattr, "
    "acl, sparse, all",
    "preserve: []": "preserve: the list is empty; to select none, write the line 'no-preserve: all'",
    "preserve: [[mode]]": "preserve: takes a single value, neither a mapping nor a nested list",
    "preserve: [{errors: x}]": "preserve: errors: only preserve, no-preserve may stand in the list",
    "verify: yes": "verify: write true or false, not yes",
    "verify: 'true'": "verify: write true or false, without quotes",
    "verbose: '2'": "verbose: write 0, 1 or 2, without quotes",
    "errors: '-'": "errors: -: name a file",
    "exclude-from: '-'": "exclude-from: -: name a file",
    "verify: [true]": "verify: write true or false, and nothing else",
    "verbose: 3": "verbose: write 0, 1 or 2, not 3",
    "errors:": "errors: has no value: write one, or leave the line out",
    "errors: ~": "errors: has no value: write one, or leave the line out",
    "errors: ~/errors": "errors: ~/errors: only a shell expands ~; write the path in full",
    "pcopy: true": "pcopy: is not a mapping of keys to values",
    "yes: true": "yes: cannot be set by a file; write --yes on the command line",
    "resume: job": "resume: cannot be set by a file; write --resume on the command line",
    "manifest: file": "manifest: cannot be set by a file; write --manifest on the command line",
    "config: other.yaml": "config: cannot be set by a file; write --config on the command line",
    "first: 1": "the key first comes twice",
    "pcopy: {ranks: 1, ranks: 2}": "the key ranks comes twice",
    "ranks: &a 1": "it uses YAML's anchors (&)",
    "exclude: *tmp": "it uses YAML's aliases (*); write quotes around a value that begins with *",
    "exclude: *.tmp": "; write quotes around a value that begins with *",
    "exclude: [a, *.tmp]": "; write quotes around a value that begins with *",
    "- @x": "; write quotes around a value that begins with @",
    "ranks = 2": "; write key: value",
    "ranks: !!int 1": "it uses YAML's tags (!)",
    "x: !!python/object/apply:os.system [false]": "it uses YAML's tags (!)",
    "{": "it is not YAML: ",
    "a: b: c": "it is not YAML: mapping values are not allowed in this context",
}


class TestRefusals:
    @pytest.mark.parametrize("line", REFUSED)
    def test_refusal_names_file_line_and_key(self, files: Files, area: Path, line: str) -> None:
        first = "first: 1\n" if line.startswith("first") else "# pcopy's options\n"
        files(user=f"{first}\n{line}\n")
        text = refusal()
        assert re.search(rf"^{re.escape(str(area))}/user/pcopy\.yaml:[34]: ", text)
        assert REFUSED[line] in text
        assert "--help" not in text

    def test_file_that_is_not_a_mapping_is_refused(self, files: Files) -> None:
        for text in ("- ranks\n", "ranks\n", "ranks: 1\n--- \nranks: 2\n", "\x00"):
            files(user=text)
            assert "pcopy.yaml" in refusal()

    def test_too_deep_and_too_large_files_are_refused_in_one_line(self, files: Files) -> None:
        files(user=f"ranks: {'[' * 5000}1{']' * 5000}\n")
        assert re.search("nested more than 16 levels deep|maximum nesting depth", refusal())
        files(user="# " + "x" * (1 << 20) + "\n")
        assert "is larger than 1 MiB" in refusal()

    def test_file_named_on_the_command_line_must_exist(self, files: Files, area: Path) -> None:
        files()
        assert refusal("--config", "no.yaml") == "--config: no.yaml does not exist; check the name"
        assert "is not a regular file" in refusal("--config", ".")
        os.mkfifo(area / "fifo")
        assert "is not a regular file" in refusal("--config", "fifo")
        (area / "user/pcopy.yaml").symlink_to("nowhere")
        assert "symbolic link that leads nowhere" in refusal()

    def test_user_without_home_has_no_file(self, files: Files, monkeypatch: pytest.MonkeyPatch, area: Path) -> None:
        """A path that is not absolute is ignored, as the XDG specification requires."""
        files("ranks: 3\n", "ranks: 2\n")
        monkeypatch.setenv("XDG_CONFIG_HOME", "user")
        monkeypatch.setenv("HOME", str(area / "nobody"))
        assert parse().ranks == 3
        (area / "nobody/.config").mkdir(parents=True)
        (area / "nobody/.config/pcopy.yaml").write_text("ranks: 5\n")
        assert parse().ranks == 5

    def test_error_on_the_command_line_is_reported_first(self, files: Files) -> None:
        files(user="nonsense: 1\n")
        assert "unknown option --nonsense" in refusal("--nonsense")


class TestTrustOfRoot:
    """The rules for root. Other users may read any file."""

    @pytest.fixture(autouse=True)
    def as_root(self) -> None:
        require_root("be root")

    def test_root_refuses_a_file_owned_by_another_user(self, files: Files, area: Path) -> None:
        files(user="ranks: 2\n")
        assert parse().ranks == 2
        os.chown(area / "user/pcopy.yaml", NOBODY, NOBODY)
        assert f"user/pcopy.yaml belongs to user {NOBODY}, and root reads" in refusal()

    @pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
    def test_root_refuses_a_file_writable_by_others(self, files: Files, area: Path, mode: int) -> None:
        files(user="ranks: 2\n")
        (area / "user/pcopy.yaml").chmod(mode)
        assert f"user/pcopy.yaml (mode {mode:04o}), and root reads" in refusal()

    def test_root_refuses_a_file_in_a_directory_writable_by_others(self, files: Files, area: Path) -> None:
        files(user="ranks: 2\n")
        (area / "user").chmod(0o777)
        assert f"others may write to {area}/user (mode 0777)" in refusal()
        (area / "user").chmod(0o1777)
        assert parse().ranks == 2
        (area / "user").chmod(0o755)
        os.chown(area / "user", NOBODY, NOBODY)
        assert f"{area}/user belongs to user {NOBODY}" in refusal()

    def test_root_follows_only_its_own_links(self, files: Files, area: Path) -> None:
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
