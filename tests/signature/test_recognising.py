"""Recognition of signature files: by the format key at their beginning, and not by a mention of the word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from pcopy.signature.signature_file import RECOGNITION_SIZE, is_truncated_signature, looks_like_signature
from tests.support.command import REPOSITORY

PLAIN = b"format: pcopy-signature\nversion: 1\n"
SIGNATURES = {
    "plain": PLAIN,
    "carriage-returns": PLAIN.replace(b"\n", b"\r\n"),
    "one-line": b"format: pcopy-signature",
    "behind-a-comment": b"# of last year\n\n" + PLAIN,
    "behind-a-mark": b"\xef\xbb\xbf" + PLAIN,
    "a-document": b"%YAML 1.2\n--- # one\n" + PLAIN,
    "quoted": b"'format' : \"pcopy-signature\" # as ever\nversion: 1\n",
    "other-order": b"version: 1\nsource: a path\n" + b"format: pcopy-signature\n",
    "behind-an-unknown-key": b"more:\n  - one\n  - two\n" + PLAIN,
    "json": b'{\n  "version": 1,\n  "format": "pcopy-signature"\n}\n',
    "json-in-a-line": b'{"version": 1, "format": "pcopy-signature"}\n',
}
DAMAGED = {
    "nothing-else": b"format: pcopy-signature\n\0\xff\n",
    "no-text": b"format: pcopy-signature\n" + bytes(range(256)),
}
DATA = {
    "empty": b"",
    "a-word": b"pcopy-signature\n",
    "a-sentence": b"What has the line\nformat: pcopy-signature\nis a signature.\n",
    "a-heading": b"# Signatures\n\nThey begin so:\n\n```yaml\nformat: pcopy-signature\n",
    "a-program": b'"""About pcopy-signature."""\n\nFORMAT = "pcopy-signature"\n',
    "a-value": b"title: format of pcopy-signature\n",
    "longer": b"format: pcopy-signatures\n",
    "other": b"format: other\n",
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_in_any_yaml_style_is_recognized(name: str) -> None:
    assert yaml.safe_load(SIGNATURES[name].decode("utf-8-sig"))["format"] == "pcopy-signature"
    assert looks_like_signature(SIGNATURES[name])


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_signature_is_recognized(name: str) -> None:
    assert looks_like_signature(DAMAGED[name])


@pytest.mark.parametrize("name", DATA)
def test_data(name: str) -> None:
    assert not looks_like_signature(DATA[name])


def test_files_that_mention_signatures_are_not_recognized_as_such() -> None:
    files = [path for part in ("pcopy", "docs", "tests") for path in (REPOSITORY / part).rglob("*.[mp][dy]")]
    found = [path for path in files if looks_like_signature(_beginning(path))]
    assert len(files) > 100 and found == []


def _beginning(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(RECOGNITION_SIZE)


def test_signature_truncated_in_its_first_line_is_recognized() -> None:
    line = PLAIN.splitlines()[0]
    assert [length for length in range(len(line) + 1) if is_truncated_signature(line[:length])] == list(range(9, 24))
    assert not is_truncated_signature(b"format: png") and not is_truncated_signature(b"format: pcopy\n")


def test_random_data_is_not_recognized_as_a_signature() -> None:
    for length in range(0, 4000, 37):
        looks_like_signature(os.urandom(length))
    assert not looks_like_signature(b" " * RECOGNITION_SIZE) and not looks_like_signature(b"a: b\n" * 800)
