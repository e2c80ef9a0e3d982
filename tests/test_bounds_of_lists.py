"""Lists, patterns, configuration and manifests from untrusted sources: limits are exact and documented.

Memory is that of a separate process, beyond what it uses before it reads. The limits of archives are tested in
tests/archive/test_bounds.py.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcopy.cli import config_files, filter_options
from pcopy.errors import RequestRefused
from pcopy.signature.algorithms import digest_algorithm_named
from pcopy.signature.items import DIRECTORY, FILE, ROOT_PATH, DirectoryHasher
from pcopy.signature.manifest import ManifestEntry, ManifestWriter
from pcopy.signature.plain_yaml import MAX_YAML_DEPTH, YamlError, load_yaml
from pcopy.tasks.sign.manifest_lines import ReadManifest
from pcopy.tools import extract
from pcopy.walk.path_list import LISTING_MAGIC, MAX_LINE_BYTES, PathListReader
from pcopy.walk.patterns import MAX_PATTERN_BYTES, patterns_in_file
from tests.support.command import REPOSITORY, pcopy, show

MIB = 1 << 20

LIMITS = {
    "pax headers and long names of one member": (("archive.member.MAX_HEADER_BYTES", "1 MiB in sum"),),
    "global headers": (("archive.member.MAX_HEADER_BYTES", "1 MiB each"),),
    "map of a sparse member": (("archive.records.MAX_EXTENTS", "4,194,304 stretches"),),
    "index `A.tar.idx`": (
        ("archive.index.MAX_INDEX_OFFSETS", "4,194,304 offsets"),
        ("archive.index.MAX_FRAMES", "4,194,304 parts"),
        ("archive.index._MAX_INDEX_LINE_BYTES", "100 bytes in each line"),
    ),
    "trailer of an archive": (("archive.incomplete.MAX_TRAILER_NAME_BYTES", "16 MiB of names"),),
    "seek table of zstd": (
        ("fsio.seekable_zstd.MAX_FRAMES", "4,194,304 frames"),
        ("fsio.seekable_zstd.MAX_FRAME_SIZE", "64 MiB in each frame"),
    ),
    "window of a zstd stream": (("fsio.seekable_zstd.MAX_WINDOW_SIZE", "128 MiB"),),
    "signature": (
        ("signature.signature_file.MAX_SIGNATURE_SIZE", "1 MiB"),
        ("signature.plain_yaml.MAX_YAML_DEPTH", "16 levels"),
    ),
    "manifest": (("signature.manifest.MAX_LINE_SIZE", "1 MiB in each line"),),
    "lists of paths": (
        ("walk.path_list.MAX_LINE_BYTES", "1 MiB in each line"),
        ("jobs.sorted_list._SORT_MEMORY", "64 MiB of memory"),
    ),
    "names that `--from` lists for `-x` and `-t`": (
        ("tools.extract.MAX_LISTED_NAMES", "1,000,000 names"),
        ("tools.extract.MAX_LISTED_BYTES", "256 MiB in sum"),
    ),
    "patterns": (
        ("cli.filter_options.MAX_PATTERNS", "50,000 in all"),
        ("cli.filter_options.MAX_PATTERN_FILE_SIZE", "16 MiB in each file"),
        ("walk.patterns.MAX_PATTERN_BYTES", "4,096 bytes in each line"),
    ),
    "configuration": (
        ("cli.config_files.MAX_CONFIG_SIZE", "1 MiB"),
        ("signature.plain_yaml.MAX_YAML_DEPTH", "16 levels"),
    ),
}
"""Rows of the table in docs/operations/limits.md: each constant, and the row's text about it."""


def rows() -> dict[str, str]:
    text = (REPOSITORY / "docs/operations/limits.md").read_text().partition("## Untrusted input files")[2]
    found = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", text, re.M)[1:]
    return {re.split(r": | \(", what)[0].strip(): limit for what, limit in found}


def test_documented_limits_match_the_code() -> None:
    table = rows()
    assert table.keys() == LIMITS.keys()
    for what, constants in LIMITS.items():
        numbers = table[what]
        for name, said in constants:
            assert said in numbers, what
            module, _, constant = name.rpartition(".")
            value = getattr(importlib.import_module(f"pcopy.{module}"), constant)
            number, _, unit = said.partition(" ")
            assert value == int(number.replace(",", "")) * (MIB if unit.startswith("MiB") else 1), name


_MEASURE = """\
import sys
def peak():
    return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1]) << 10
from pcopy.cli import filter_options
from pcopy.signature.plain_yaml import load_yaml
from pcopy.walk.path_list import PathListReader
before = peak()
try:
    {what}
except ValueError as error:
    print(str(error)[:200], file=sys.stderr)
except Exception as error:
    print(str(error)[:200], file=sys.stderr)
print(peak() - before)
"""


def peak_of(what: str, *arguments: object) -> tuple[int, str]:
    """Return the bytes of memory that a statement takes in a separate process, and the error."""
    line = [sys.executable, "-c", _MEASURE.format(what=what), *map(str, arguments)]
    done = subprocess.run(line, check=True, capture_output=True, text=True, cwd=REPOSITORY, timeout=100)
    return int(done.stdout), done.stderr


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("end", [b"\n", b"\0", b""])
@pytest.mark.parametrize("before", [b"", b"a" * 1000])
def test_line_length_of_a_list_is_limited(area: Path, more: int, end: bytes, before: bytes) -> None:
    line = b"x" * (MAX_LINE_BYTES + more)
    (area / "list").write_bytes((before + (end or b"\n") if before else b"") + line + end)
    with PathListReader(os.fsencode(area / "list"), nul=end == b"\0") as listing:
        if more:
            with pytest.raises(RequestRefused, match=f"line {2 if before else 1}: is longer than any path"):
                list(listing)
        else:
            assert [len(found.path) for found in listing] == [len(before)] * bool(before) + [MAX_LINE_BYTES]


READ_LIST = "list(PathListReader(sys.argv[1].encode()))"


@pytest.mark.parametrize(
    ("begin", "text", "why", "most"),
    [
        (b"", b"\n", "", 48 * MIB),
        (b"", b"x", "is longer than any path", 16 * MIB),
        (LISTING_MAGIC + b', "version": 1, "directory_b64": "Lw=="}\n', b"\n", "is not a JSON object", 48 * MIB),
        (LISTING_MAGIC + b', "version": 1, "directory_b64": "Lw=="}\n', b"[", "is longer than any path", 16 * MIB),
        (
            LISTING_MAGIC + b', "version": 1, "directory_b64": "Lw=="}\n[',
            b"[" * 99999 + b"\n",
            "is not a JSON object",
            16 * MIB,
        ),
        (
            LISTING_MAGIC + b', "version": 1, "directory_b64": "Lw=="}\n[',
            b"9" * 99999 + b"\n",
            "is not a JSON object",
            16 * MIB,
        ),
        (b"", b"#pcopy", "is longer than any path", 16 * MIB),
    ],
    ids=["newlines", "one line", "listing of newlines", "one line of JSON", "deep JSON", "large number", "no list"],
)
def test_invalid_list_takes_no_memory(area: Path, begin: bytes, text: bytes, why: str, most: int) -> None:
    (area / "list").write_bytes(begin + text * ((4 if text == b"\n" else 64) * MIB // len(text)))
    peak, said = peak_of(READ_LIST, area / "list")
    assert why in said and peak < most, (peak, said)


@pytest.mark.parametrize("more", [0, 1])
def test_number_of_patterns_is_limited(area: Path, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    monkeypatch.setattr(filter_options, "MAX_PATTERNS", 100)
    (area / "patterns").write_text("# comment\n" * 1000 + "a\n" * (100 + more))
    if more:
        with pytest.raises(ValueError, match="more than 100 patterns"):
            filter_options._lines_of_pattern_file(str(area / "patterns"))
    else:
        assert len(filter_options._lines_of_pattern_file(str(area / "patterns"))) == 100
    values = SimpleNamespace(newer_than=None, older_than=None, larger_than=None, smaller_than=None)
    values.patterns = [[b"a"]] * (100 + more)
    if more:
        with pytest.raises(RequestRefused, match="there are 101 patterns, but at most 100 may be given"):
            filter_options.requested_selection(values, ())  # type: ignore[arg-type]
    else:
        assert len(filter_options.requested_selection(values, ()).patterns) == 100  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [0, 1])
def test_length_of_a_pattern_is_limited(more: int) -> None:
    contents = b"a\n" + b"x" * (MAX_PATTERN_BYTES + more) + b"\n"
    if more:
        with pytest.raises(ValueError, match="line 2: the pattern is longer than 4,096 bytes"):
            list(patterns_in_file(contents))
    else:
        assert len(list(patterns_in_file(contents))) == 2


@pytest.mark.parametrize(
    ("text", "why"), [(b"\n", ""), (b"#\n", ""), (b"ab\n", "more than 50,000 patterns"), (b"x", "4,096")]
)
def test_patterns_take_bounded_memory(area: Path, text: bytes, why: str) -> None:
    (area / "patterns").write_bytes(text * (filter_options.MAX_PATTERN_FILE_SIZE // len(text)))
    peak, said = peak_of("filter_options._lines_of_pattern_file(sys.argv[1])", area / "patterns")
    assert why in said and peak < 80 * MIB, (peak, said)


@pytest.mark.parametrize("more", [0, 1])
def test_size_of_pattern_and_option_files_is_limited(area: Path, more: int) -> None:
    for name, largest in (
        ("patterns", filter_options.MAX_PATTERN_FILE_SIZE),
        ("set.yaml", config_files.MAX_CONFIG_SIZE),
    ):
        (area / name).write_bytes(b"#" * (largest + more - 1) + b"\n")
    if more:
        with pytest.raises(ValueError, match="too large"):
            filter_options._lines_of_pattern_file(str(area / "patterns"))
        with pytest.raises(RequestRefused, match="larger than 1 MiB"):
            config_files.read_config_file(os.fsencode(area / "set.yaml"))
    else:
        assert filter_options._lines_of_pattern_file(str(area / "patterns")) == []
        assert load_yaml((area / "set.yaml").read_bytes(), is_handwritten=True) == {}


LAUGHS = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%b]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(9)
)


@pytest.mark.parametrize("is_handwritten", [True, False])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LAUGHS, "YAML's a"),
        (b"a: " + b"[" * (MIB - 4), "nest"),  # the library has its own limit
        (b"".join(b" " * n + b"a:\n" for n in range(1400)), "nested more than 16 levels deep"),
        (b"a: [" + b"x," * (MIB // 2 - 4) + b"]", ""),
        (b"".join(b"%06x: 1\n" % n for n in range(MIB // 10)), ""),
    ],
    ids=["aliases", "deep flow", "deep block", "long list", "many keys"],
)
def test_yaml_takes_bounded_memory(area: Path, text: bytes, why: str, is_handwritten: bool) -> None:
    assert len(text) <= MIB
    (area / "set.yaml").write_bytes(text)
    peak, said = peak_of(
        f"load_yaml(open(sys.argv[1], 'rb').read(), is_handwritten={is_handwritten})", area / "set.yaml"
    )
    assert (why in said if why else not said) and peak < 320 * MIB, (peak, said)


@pytest.mark.parametrize("more", [0, 1])
def test_nesting_of_yaml_is_limited(more: int) -> None:
    text = b"a: " + b"[" * (MAX_YAML_DEPTH - 1 + more) + b"]" * (MAX_YAML_DEPTH - 1 + more)
    if more:
        with pytest.raises(YamlError, match="nested more than 16 levels deep"):
            load_yaml(text, is_handwritten=True)
    else:
        load_yaml(text, is_handwritten=True)


def test_manifest_lines_are_passed_on_in_parts_of_bounded_size(area: Path) -> None:
    """With 100 names of 1 MiB only few are in memory at the same time."""
    kind, names = digest_algorithm_named("xxh3-128"), [b"%03d" % number + b"x" * 900_000 for number in range(100)]
    hasher = DirectoryHasher(kind)
    digest = b"d" * kind.digest_size
    for name in names:
        hasher.add_child(FILE, name, digest)
    with ManifestWriter(os.fsencode(area / "manifest"), kind, 1 << 22) as manifest:
        manifest.write(ManifestEntry(DIRECTORY, hasher.digest(), 0, ROOT_PATH))
        for name in names:
            manifest.write(ManifestEntry(FILE, digest, 1, name))
    kept: list[int] = []
    stopped: list[str] = []
    state = SimpleNamespace(
        selects_manifest_entry=lambda *entry: True, store_entries=lambda entries: kept.append(len(entries.names))
    )
    rank: Any = SimpleNamespace(
        job=SimpleNamespace(against=os.fsencode(area / "manifest")),
        shared_instance=lambda kind: state,
        request_stop=stopped.append,
    )
    del names
    tracemalloc.start()
    list(ReadManifest().run(rank, None))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert stopped == [] and sum(kept) >= 100 * 900_000 and peak < 32 * MIB


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("limit", ["MAX_LISTED_NAMES", "MAX_LISTED_BYTES"])
def test_number_and_size_of_member_names_is_limited(
    area: Path, monkeypatch: pytest.MonkeyPatch, limit: str, more: int
) -> None:
    monkeypatch.setattr(extract, limit, 100)
    (area / "list").write_bytes(b"a\n" * (100 + more))
    arguments: Any = SimpleNamespace(
        list_file=os.fsencode(area / "list"), nul_separated=False, _replace=lambda paths: paths
    )
    if more:
        with pytest.raises(RequestRefused, match=r"line 101: the list has more than 100 (names|bytes of names)"):
            extract.arguments_with_listed_members(arguments)
    else:
        assert len(extract.arguments_with_listed_members(arguments)) == 100


def test_too_many_patterns_are_refused_in_one_line(area: Path) -> None:
    (area / "src").mkdir()
    (area / "patterns").write_text("a\n" * 50_001)
    run = pcopy("--exclude-from", area / "patterns", area / "src", area / "dst")
    assert run.returncode == 2 and run.stderr.count(b"\n") == 1 and b"more than 50,000 patterns" in run.stderr, show(
        run
    )
