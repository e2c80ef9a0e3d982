"""Names on a terminal: no information is lost, and no control characters are printed."""

from __future__ import annotations

import random

import pytest

from pcopy.text import (
    MAX_MESSAGE_LENGTH,
    count_with_noun,
    encodable_text,
    one_line_message,
    printable_path,
    printable_text,
)


def unescaped(text: str) -> bytes:
    """The inverse of ``shown`` for ASCII names, by Python's own rules for escapes."""
    return text.encode("ascii").decode("unicode_escape").encode("latin-1")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"plain name", "plain name"),
        ("Übergröße/日本".encode(), "Übergröße/日本"),
        (b"a\nb\tc\rd", r"a\nb\tc\rd"),
        (b"back\\slash", r"back\\slash"),
        (b"\x1b[31mred\x07", r"\x1b[31mred\x07"),
        (b"latin\xe9", r"latin\xe9"),
        (b"\xed\xa0\x80", r"\xed\xa0\x80"),
        ("evil\u202etxt".encode(), r"evil\xe2\x80\xaetxt"),
        ("\u2028".encode(), r"\xe2\x80\xa8"),
        (b"\x7f", r"\x7f"),
        (b"", ""),
    ],
)
def test_names_are_escaped_for_display(path: bytes, text: str) -> None:
    assert printable_path(path) == text


def test_shown_names_are_printable_and_ascii_names_recoverable() -> None:
    chance = random.Random(7)
    for _ in range(2000):
        path = chance.randbytes(chance.randrange(12))
        assert printable_path(path).isprintable()
        ascii_path = bytes(byte & 0x7F for byte in path)
        assert unescaped(printable_path(ascii_path)) == ascii_path


def test_count_with_noun_uses_singular_for_one() -> None:
    assert [count_with_noun(number, "item", "items") for number in (0, 1, 2000)] == ["0 items", "1 item", "2,000 items"]


def test_message_stays_on_one_line_and_keeps_backslashes() -> None:
    assert printable_text("cannot write a\\nb") == "cannot write a\\nb"
    assert printable_text("two\nlines \x1b[1m\udcff") == r"two\nlines \x1b[1m\xff"


def test_only_messages_beyond_the_limit_are_shortened() -> None:
    path_max = printable_path(b"\x01" * 4095)  # each byte becomes four characters
    assert one_line_message(path_max) == path_max and len(path_max) <= MAX_MESSAGE_LENGTH
    line = one_line_message("begin" + "n" * (1 << 20) + "\n: open: File name too long")
    assert line.startswith("beginnnn") and line.endswith(r"nnn\n: open: File name too long")
    assert "characters not shown" in line and len(line) < MAX_MESSAGE_LENGTH


def test_text_is_escaped_to_the_encoding_of_the_stream() -> None:
    assert encodable_text("Größe 日\n\x9b", "utf-8") == "Größe 日\n\\xc2\\x9b"
    assert encodable_text("Größe 日\n", "latin-1") == "Größe \\xe6\\x97\\xa5\n"
    assert encodable_text("Größe\ud800", "ANSI_X3.4-1968") == r"Gr\xc3\xb6\xc3\x9fe\xed\xa0\x80"
