"""Values of ``--compress`` and ``--decompress``, options that exclude them, and their values in configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcopy.cli.pcopy import PCOPY
from tests.support.command import pcopy, show
from tests.support.oracle import changes, snapshot
from tests.support.refusals import refusal


def parsed(*words: str) -> tuple[str, bool]:
    options = PCOPY.parse_command_line([*words, "source", "copy"]).copy_options
    return options.compress, options.decompress


def test_compression_options_are_parsed() -> None:
    assert parsed() == ("", False)
    assert parsed("--decompress") == ("", True)
    assert parsed("--compress", "zstd") == ("zstd:3", False)
    assert parsed("--compress=zstd:19") == ("zstd:19", False)


@pytest.mark.parametrize("how", ["gzip", "zstd:", "zstd:0", "zstd:23", "zstd:-1", "zstd:x", "zst", ""])
def test_unknown_compression_methods_are_refused(how: str) -> None:
    reported = refusal(lambda: PCOPY.parse_command_line([f"--compress={how}", "source", "copy"]))
    assert "--compress" in reported
    assert "zstd" in reported


@pytest.mark.parametrize(
    "words",
    [
        "--verify", "--repair", "--checksum", "--inplace", "--direct", "--drop-cache", "--mirror", "--delete",
        "--stripe-affinity", "--group-lock", "-u", "--existing newer", "--existing skip", "--existing fail",
        "--reflink always",
    ],
)  # fmt: skip
def test_options_that_exclude_compression_are_refused(words: str) -> None:
    for option in (["--compress", "zstd"], ["--decompress"]):
        reported = refusal(lambda: PCOPY.parse_command_line([*option, *words.split(), "source/", "copy"]))  # noqa: B023
        assert option[0] in reported
        assert words.replace("-u", "newer").split()[-1] in reported
        assert "leave one out" in reported
        assert "\n" not in reported


def test_compress_excludes_decompress_and_decompress_excludes_signature() -> None:
    assert "opposites" in refusal(lambda: parsed("--compress", "zstd", "--decompress"))
    for option in ("--signature", "--manifest"):
        assert "pverify --create" in refusal(lambda: parsed("--decompress", option, "file"))  # noqa: B023
        assert parsed("--compress", "zstd", option, "file") == ("zstd:3", False)


def test_compression_overrides_conflicting_options_of_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("verify: true\nexisting: newer\ndrop-cache: true\n")
    words = ["--config", str(tmp_path / "file"), "--compress", "zstd", "source", "copy"]
    options = PCOPY.parse_command_line(words).copy_options
    assert (options.compress, options.verify, options.existing) == ("zstd:3", False, "replace")
    (tmp_path / "file").write_text("compress: zstd\n")
    assert "compress" in refusal(lambda: PCOPY.parse_command_line(words))


def test_refused_compression_changes_nothing(area: Path) -> None:
    (area / "source").mkdir()
    before = snapshot(area)
    run = pcopy("--compress", "lz4", area / "source", area / "copy")
    assert (run.returncode, run.stdout, len(run.stderr.splitlines())) == (2, b"", 1), show(run)
    assert changes(before, snapshot(area)) == []
