"""Signature files: any YAML reader reads the written values, and no invalid file is accepted as a signature."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pcopy.errors import RequestRefused
from pcopy.signature.plain_yaml import dump_yaml, load_yaml
from pcopy.signature.signature_file import MAX_SIGNATURE_SIZE, DatasetSignature, read_signature, write_signature

SAMPLE = DatasetSignature(
    "xxh3-128",
    4 << 20,
    "7f682f90fd0fffe8ab8ffad8c007c3c0",
    4,
    2,
    1,
    1,
    200007,
    "/path/as/given",
    "2026-11-21T00:00:00Z",
    "pcopy 0.1.0",
)
BY_HAND = b"""\
# by somebody else
format: pcopy-signature
version: 1
algorithm: xxh3-128
block_size: 65536
signature: 7f682f90fd0fffe8ab8ffad8c007c3c0
files: 4
directories: 2          # the root counts
symlinks: 1
special: 1
bytes: 200007
source: /path/as/given
created: 2026-11-21T00:00:00Z
generator: pcopy 0.1.0
"""
FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
_ODDITIES = "0123456789_.+-eExobaftynul:T Z/~<=#"
WORDS = st.one_of(
    st.text(_ODDITIES, max_size=12),
    st.from_regex(
        r"[0-9]{1,4}-[0-9]{1,2}-[0-9]{1,2}([Tt ]+[0-9]{1,2}(:[0-9]{2}){2}(\.[0-9]*)?(Z|[-+][0-9]{1,2})?)?",
        fullmatch=True,
    ),
    st.from_regex(r"[-+]?[0-9_]*\.?[0-9_]*([eE][-+]?[0-9]+)?", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
"""Strings that YAML may read as numbers, times, booleans, or null."""

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
TIMES = st.datetimes().map(lambda time: time.strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0"))


def hexadecimal(digits: int) -> st.SearchStrategy[str]:
    return st.one_of(
        st.text("0123456789abcdef", min_size=digits, max_size=digits),
        st.text("0123456789", min_size=digits, max_size=digits),
        st.integers(0, digits - 2).map(lambda at: "1" * (at + 1) + "e" + "2" * (digits - at - 2)),
        st.just("0" * digits),
        st.just("0" * (digits - 1) + "8"),
    )


COUNTS = st.integers(0, 2**64 - 1)
DIGESTS = st.one_of(st.tuples(st.just("xxh3-128"), hexadecimal(32)), st.tuples(st.just("blake3"), hexadecimal(64)))


@st.composite
def signatures(draw: st.DrawFn) -> DatasetSignature:
    name, digits = draw(DIGESTS)
    files, directories, symlinks, special, total = draw(st.tuples(*[COUNTS] * 5))
    counts = (files, directories, symlinks, special, total)
    source, created, generator = draw(st.tuples(TEXTS, TIMES, TEXTS))
    return DatasetSignature(name, 1 << draw(st.integers(16, 62)), digits, *counts, source, created, generator)


@pytest.fixture
def file(area: Path) -> Path:
    return area / "data.sig"


def refusal(file: Path, contents: bytes) -> str:
    """Return the reason of the refusal; check the rest of the line."""
    file.write_bytes(contents)
    with pytest.raises(RequestRefused) as refused:
        read_signature(file)
    line = str(refused.value)
    assert line.isprintable() and str(file) in line
    return line.partition(f"{file} as a signature file: ")[2]


@FUZZ
@given(signature=signatures())
@example(SAMPLE)
@example(SAMPLE._replace(source="2026-11-21T00:00:00Z", created="0999-12-31T23:59:59Z", generator="1.2.3"))
@example(SAMPLE._replace(signature="12345678901234567890123456789012"))
@example(SAMPLE._replace(signature="1e" + "1" * 30))
@example(SAMPLE._replace(source="2026-11-21", generator="~"))
@example(SAMPLE._replace(source='"\\ # : \n\r\t\x00\x85\u2028\ufeff\U0001f600'))
def test_written_signature_is_read_here_and_by_yaml_libraries(file: Path, signature: DatasetSignature) -> None:
    write_signature(file, signature)
    assert read_signature(file) == signature
    assert set(map(type, read_signature(file))) == {str, int}  # ranks exchange no other types
    expected = {"format": "pcopy-signature", "version": 1, **signature._asdict()}
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        found = yaml.load(file.read_bytes(), Loader=loader)
        if isinstance(found["created"], datetime):
            found["created"] = found["created"].strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")
        assert found == expected
    lines = file.read_bytes().splitlines()
    assert lines[:2] == [b"format: pcopy-signature", b"version: 1"]


@FUZZ
@given(text=WORDS)
@example("2026-11-21T00:00:00Z")
@example("1.2.3")
def test_strings_are_never_read_as_another_type(text: str) -> None:
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        assert yaml.load(dump_yaml([("key", text)], time_key="created"), Loader=loader) == {"key": text}
    assert load_yaml(dump_yaml([("key", text)])) == {"key": text}


@pytest.mark.parametrize(
    "text",
    ["0", "007", "1_000", "0x1f", "0o17", "0b1", "1e3", "1.5", "1.", "1.5e+3", "1.2.3"]
    + ["2026-11-21", "2026-11-21T00:00:00Z"]
    + [spelled for word in ("yes", "no", "y", "n", "true", "false", "on", "off", "null") for spelled in
       (word, word.upper(), word.title())]
    + ["~", "<<", "=", ".inf", "-.inf", ".nan", "", "-", "- a", "a: b", "a #b", "12:30:45", "a ", " a", "é"],
)  # fmt: skip
def test_ambiguous_strings_are_quoted(text: str) -> None:
    """Also by the rules of YAML 1.2, and by those of 1.1 that the library here does not implement."""
    assert dump_yaml([("key", text)], time_key="created") == f'key: "{text}"\n'.encode()


@pytest.mark.parametrize("text", ["pcopy 0.1.0", "/data/run-7", "xxh3-128", "1e" + "1" * 29 + "a", "nothing", "8h"])
def test_unambiguous_strings_are_not_quoted(text: str) -> None:
    assert dump_yaml([("key", text)]) == f"key: {text}\n".encode()


def test_creation_time_is_read_as_a_time(file: Path) -> None:
    write_signature(file, SAMPLE._replace(source=SAMPLE.created))
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        found = yaml.load(file.read_bytes(), Loader=loader)
        assert found["created"] == datetime(2026, 11, 21, tzinfo=UTC)
        assert found["source"] == SAMPLE.created


def test_example_signature_file_in_the_docs_is_correct(file: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "formats" / "signature.md"
    example = page.read_bytes().split(b"```yaml\n")[1].partition(b"```")[0]
    assert write_and_read(file, SAMPLE) == example


def test_names_that_are_not_unicode_are_escaped(file: Path) -> None:
    write_signature(file, SAMPLE._replace(source=os.fsdecode(b"/\xff\xe4")))
    assert read_signature(file).source == "/\\udcff\\udce4"


@pytest.mark.parametrize("digits", ["7f682f90fd0fffe8ab8ffad8c007c3c0", "1" * 32, "1e" + "2" * 30, "0" * 32, "A" * 32])
def test_unquoted_digests_are_read_as_strings(file: Path, digits: str) -> None:
    file.write_bytes(BY_HAND.replace(b"7f682f90fd0fffe8ab8ffad8c007c3c0", digits.encode()))
    assert read_signature(file) == SAMPLE._replace(block_size=65536, signature=digits.lower())


def test_missing_origin_and_unknown_keys_are_accepted(file: Path) -> None:
    lines = BY_HAND.splitlines(keepends=True)
    file.write_bytes(b"\xef\xbb\xbf" + b"".join(lines[:-3]) + b"ticket: 0815\nhosts: [a, b: {c: 1.0}]\n")
    read = read_signature(file)
    assert (read.source, read.created, read.generator) == ("", "", "")
    assert read == SAMPLE._replace(block_size=65536, source="", created="", generator="")


REQUIRED = [
    line.partition(b":")[0].decode()
    for line in BY_HAND.splitlines()
    if line.partition(b":")[0] not in (b"# by somebody else", b"source", b"created", b"generator")
]


@pytest.mark.parametrize("key", REQUIRED)
def test_required_keys_must_occur_exactly_once(file: Path, key: str) -> None:
    lines = BY_HAND.splitlines(keepends=True)
    (line,) = (line for line in lines if line.startswith(f"{key}:".encode()))
    assert refusal(file, BY_HAND.replace(line, b"")) == f"it lacks the key {key}"
    assert refusal(file, BY_HAND + line) == f"the key {key} comes twice"
    assert f"{key} is not a single value" in refusal(file, BY_HAND.replace(line, f"{key}: [1]\n".encode()))


def changed(key: str, value: str) -> Callable[[], bytes]:
    lines = BY_HAND.decode().splitlines()
    return lambda: "\n".join(f"{key}: {value}" if line.startswith(f"{key}:") else line for line in lines).encode()


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (lambda: b"", "not a mapping"),
        (lambda: b"# nothing\n", "not a mapping"),
        (lambda: b"just text", "not a mapping"),
        (lambda: b"- a\n- b\n", "not a mapping"),
        (lambda: BY_HAND + b"---\na: 1\n", "more than one YAML document"),
        (lambda: b"a: b: c\n", "not YAML: mapping values are not allowed"),
        (lambda: b"a: 'b\n", "not YAML"),
        (lambda: b"\xff\xfea\x00", "not UTF-8"),
        (lambda: b"a: \x00\n", "not YAML"),
        (lambda: b'a: "\\UFFFFFFFF"\n', "not YAML"),
        (lambda: b"a: &x [1]\nb: *x\n", "aliases"),
        (lambda: b"a: " + b"[" * 100_000, "nest"),  # the library has its own limit since 6.0.4
        (lambda: b"[a]: 1\n", "no string"),
        (lambda: b"? " + b"k" * 101 + b"\n: 1\n", "a key of more than"),
        (lambda: BY_HAND + b"#" * MAX_SIGNATURE_SIZE, "more than 1048576 bytes"),
        (changed("format", "pcopy-manifest"), "its format is not pcopy-signature"),
        (changed("version", "2"), "version 2 of the format, but this pcopy knows version 1: use a newer pcopy"),
        (changed("version", "0"), "no version 0"),
        (changed("version", "1.0"), "version is not a whole number"),
        (changed("algorithm", "md5"), "its algorithm is none of xxh3-128, blake3"),
        (changed("algorithm", "blake3"), "the 64 hexadecimal digits of blake3"),
        (changed("block_size", "32768"), "block_size is no power of two"),
        (changed("block_size", "65537"), "block_size is no power of two"),
        (changed("block_size", str(1 << 63)), "block_size is no power of two"),
        (changed("block_size", "0x10000"), "block_size is not a whole number"),
        (changed("signature", "7f682f90fd0fffe8ab8ffad8c007c3c"), "the 32 hexadecimal digits"),
        (changed("signature", "7f682f90fd0fffe8ab8ffad8c007c3cg"), "the 32 hexadecimal digits"),
        (changed("signature", ""), "the 32 hexadecimal digits"),
        (changed("files", "-1"), "files is not a whole number"),
        (changed("files", "1.5"), "files is not a whole number"),
        (changed("files", "007"), "files is not a whole number"),
        (changed("files", "\uff11"), "files is not a whole number"),
        (changed("bytes", "1" * 5000), "bytes is not a whole number"),
    ],
)
def test_errors_in_a_signature_file_are_reported_in_one_line(
    file: Path, contents: Callable[[], bytes], reason: str
) -> None:
    assert reason in refusal(file, contents())


def test_unreadable_file_is_refused(area: Path) -> None:
    for path, reason in (
        (area, "Is a directory"),
        (area / "no\nfile", "No such file"),
        (area / ("x" * 300), "too long"),
    ):
        with pytest.raises(RequestRefused, match=reason) as refused:
            read_signature(path)
        assert str(refused.value).isprintable()


@FUZZ
@given(at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_changed_byte_is_refused_or_changes_the_result(file: Path, at: int, byte: int) -> None:
    write_signature(file, SAMPLE)
    contents = bytearray(file.read_bytes())
    contents[at % len(contents)] = byte
    file.write_bytes(contents)
    try:
        read = read_signature(file)
    except RequestRefused as refused:
        assert str(refused).isprintable()
        return
    assert read != SAMPLE or plain(bytes(contents)) == plain(write_and_read(file, SAMPLE))


def plain(contents: bytes) -> object:
    """The values that YAML itself reads; another spelling of the same value, or an upper-case digit, is no damage.

    Uses libyaml: the library's own parser accepts no tab before a value, which YAML allows.
    """
    found = yaml.load(contents, Loader=yaml.CBaseLoader)
    return {**found, "signature": found["signature"].lower()}


def write_and_read(file: Path, signature: DatasetSignature) -> bytes:
    write_signature(file, signature)
    return file.read_bytes()


@FUZZ
@given(length=st.integers(0, 10_000), tail=st.binary(max_size=20))
def test_truncated_files_are_refused_unless_still_complete(file: Path, length: int, tail: bytes) -> None:
    contents = write_and_read(file, SAMPLE)
    file.write_bytes(contents[: length % len(contents)] + tail)
    try:
        read = read_signature(file)
    except RequestRefused:
        return
    assert read.signature == SAMPLE.signature and read.bytes


@FUZZ
@given(contents=st.one_of(st.binary(max_size=200), st.text("-[]{}:,&*!|>'\"%@`? \n\tab1", max_size=60).map(str.encode)))
def test_arbitrary_contents_are_refused(file: Path, contents: bytes) -> None:
    refusal(file, contents)


def test_pure_python_parser_also_refuses(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(yaml, "CBaseLoader")
    file.write_bytes(BY_HAND)
    assert read_signature(file) == SAMPLE._replace(block_size=65536)
    for contents in (b"a: b: c\n", b"a: \x00\n", b'a: "\\UFFFFFFFF"\n', b'a: "\\U0011ffff"', b"a: " + b"[" * 5000):
        refusal(file, contents)


def test_files_are_replaced_completely_with_the_default_mode(area: Path) -> None:
    before = os.umask(0o027)
    try:
        write_signature(area / "new", SAMPLE)
        (area / "old").write_text("old")
        os.link(area / "old", area / "other name")
        write_signature(os.fsencode(area / "old"), SAMPLE)
    finally:
        os.umask(before)
    for name in ("new", "old"):
        assert stat.filemode((area / name).lstat().st_mode) == "-rw-r-----"
        assert read_signature(area / name) == SAMPLE
    assert (area / "other name").read_text() == "old"
    assert sorted(os.listdir(area)) == ["new", "old", "other name"]


def test_longest_and_relative_names_are_written(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(area)
    for name in ("n" * 255, b"\xff" * 255, "./plain"):
        write_signature(name, SAMPLE)
        assert read_signature(name) == SAMPLE


def test_only_regular_files_are_replaced_by_a_signature(area: Path) -> None:
    os.mkfifo(area / "pipe")
    (area / "directory").mkdir()
    (area / "file").write_text("old")
    links = {"to a pipe": "pipe", "to a directory": "directory", "to a file": "file", "to nothing": "nowhere"}
    for name, target in links.items():
        (area / name).symlink_to(target)
    for name in ("pipe", "directory", *links):
        with pytest.raises(RequestRefused, match="is a symbolic link" if name in links else "is not a regular file"):
            write_signature(area / name, SAMPLE)
    assert sorted(os.listdir(area)) == sorted(["directory", "file", "pipe", *links])
    assert {name: os.readlink(area / name) for name in links} == links
    assert (area / "pipe").is_fifo() and (area / "file").read_text() == "old"


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_failed_write_changes_nothing(area: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (area / "old").write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        write_signature(area / "old", SAMPLE)
    assert os.listdir(area) == ["old"] and (area / "old").read_text() == "old"


def test_contents_are_synced_before_the_rename_and_directory_after(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        calls.append("directory" if stat.S_ISDIR(found.st_mode) else f"file of {found.st_size > 100}")
        fsync(descriptor)

    def note_rename(source: bytes, target: bytes, **directories: int) -> None:
        calls.append("rename")
        rename(source, target, **directories)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    write_signature(area / "new", SAMPLE)
    assert calls == ["file of True", "rename", "directory"]
