"""Frames: what of a file counts after a crash, and what is damage."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcopy.checkpoint.framing import read_record_frames, write_record_frame
from pcopy.errors import RequestRefused
from tests.support.filesystems import scratch
from tests.support.frames import framed

HEADER = 24


def payloads(*sizes: int) -> list[bytes]:
    return [pickle.dumps(bytes(range(256)) * (size // 256) + bytes(size % 256), 5) for size in sizes]


def read(path: Path, content: bytes) -> list[bytes]:
    path.write_bytes(content)
    path.chmod(0o600)
    return [frame.payload for frame in read_record_frames(path)]


@pytest.fixture
def file(area: Path) -> Path:
    return area / "facts"


def test_frames_have_the_defined_form(file: Path) -> None:
    some = payloads(0, 1, 100, 70000)
    stream = io.BytesIO()
    for payload in some:
        write_record_frame(stream, payload)
    assert stream.getvalue() == framed(*some)
    assert read(file, stream.getvalue()) == some
    assert read(file, b"") == []


class Sluggish(io.BytesIO):
    """Takes a few bytes at a time, as an unbuffered file may."""

    def write(self, data: object) -> int:
        return super().write(bytes(memoryview(data)[:7]))  # type: ignore[arg-type]


def test_short_writes_are_completed() -> None:
    stream = Sluggish()
    write_record_frame(stream, payloads(50)[0])
    assert stream.getvalue() == framed(*payloads(50))


@pytest.mark.parametrize("tail", ["nothing", "zeros", "more zeros", "zeros in the place of the rest"])
def test_torn_tail_of_any_length_is_ignored(file: Path, tail: str) -> None:
    some = payloads(3, 300, 40)
    whole = framed(*some)
    second = len(framed(*some[:2]))
    for length in range(len(framed(*some[:1])), len(whole)):
        missing = {"nothing": 0, "zeros": 40, "more zeros": 5000}.get(tail, len(whole) - length)
        content = whole[:length] + bytes(missing)
        if content == whole:
            continue
        assert read(file, content) == some[: 2 if length >= second else 1], length


def test_zeros_after_complete_frames_are_ignored(file: Path) -> None:
    some = payloads(3, 300)
    for zeros in (1, 7, 8, HEADER - 1, HEADER, HEADER + 1, 4096, 3 << 20):
        assert read(file, framed(*some) + bytes(zeros)) == some


def test_torn_tail_without_its_first_page_is_ignored(file: Path) -> None:
    """A power loss may lose the page in which a frame begins, and keep those behind it: zeros, and then its payload."""
    some = payloads(3, 300, 40)
    first, last = len(framed(*some[:1])), framed(*some[2:])
    begun = framed(*some[:2])
    for lost in range(8, len(last)):
        assert read(file, begun + bytes(lost) + last[lost:]) == some[:2], lost
    with pytest.raises(
        RequestRefused, match=f"at byte {first}: the record is not complete, but a complete one follows"
    ):
        read(file, begun[:first] + bytes(100) + begun[first + 100 :] + last)


def test_flipped_bit_in_last_frame_is_a_torn_tail_unless_it_shortens_it(file: Path) -> None:
    some = payloads(3, 300, 40)
    whole = bytearray(framed(*some))
    last = len(framed(*some[:2]))
    for at in range(last, len(whole)):
        for bit in (1, 128):
            whole[at] ^= bit
            try:
                assert read(file, bytes(whole)) == some[:2]
            except RequestRefused as error:
                assert at == last + 7, f"{at}: {error}"  # shorter than it was: something lies behind it
                assert f"damaged at byte {last}: the record does not match its digest" in str(error)
            whole[at] ^= bit


def test_flipped_bit_in_any_earlier_frame_is_refused(file: Path) -> None:
    """Also in its length, which then points beyond the end of the file, or right at it."""
    some = payloads(3, 300, 40)
    whole = bytearray(framed(*some))
    second, last = (len(framed(*some[:number])) for number in (1, 2))
    for at in range(last):
        for bit in (1, 4, 128):
            whole[at] ^= bit
            with pytest.raises(RequestRefused, match=rf"facts: damaged at byte {0 if at < second else second}: "):
                read(file, bytes(whole))
            whole[at] ^= bit
    whole[:8] = (len(whole) - HEADER).to_bytes(8, "big")
    with pytest.raises(
        RequestRefused, match="facts: damaged at byte 0: the record is not complete, but a complete one follows"
    ):
        read(file, bytes(whole))


@pytest.mark.parametrize("behind", [b"\1", bytes(500) + b"\1", framed(*payloads(50))[:-1]])
def test_wrong_digest_followed_by_data_is_refused(file: Path, behind: bytes) -> None:
    """The frame was synced before anything was written behind it, so it is no torn one. What is behind it may be."""
    some = framed(*payloads(3, 300))
    with pytest.raises(RequestRefused, match=f"at byte {len(framed(*payloads(3)))}: the record does not match"):
        read(file, some[:-9] + bytes([some[-9] ^ 1]) + some[-8:] + behind)


def test_complete_frame_far_after_the_damage_is_found(file: Path) -> None:
    """Wherever it lies with regard to the blocks in which it is searched for."""
    for shift in range(-3, HEADER + 3):
        junk = b"\xff" * ((1 << 20) + shift)
        with pytest.raises(RequestRefused, match="at byte 0: the record is not complete, but a complete one follows"):
            read(file, junk + framed(*payloads(5)))
        assert read(file, junk) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 600), max_size=5), st.binary(max_size=40), st.integers(0, 3000))
def test_complete_frames_before_damage_are_read(sizes: list[int], junk: bytes, at: int) -> None:
    some = payloads(*sizes)
    content = framed(*some)
    content = content[:at] + junk + content[at + len(junk) :]
    with scratch() as area:
        (area / "facts").write_bytes(content)
        (area / "facts").chmod(0o600)
        found = []
        try:
            for frame in read_record_frames(area / "facts"):
                found.append(frame.payload)
        except RequestRefused as error:
            assert f"facts: damaged at byte {len(framed(*found))}: " in str(error)
        untouched = sum(len(framed(*some[: number + 1])) <= at for number in range(len(some)))
        assert found == some[: len(found)]
        assert len(found) >= untouched


@pytest.mark.parametrize("user", [65534])
def test_record_file_of_another_user_is_refused(file: Path, user: int) -> None:
    read(file, framed(*payloads(1)))
    if os.geteuid():
        pytest.skip("only root can give files away")
    os.chown(file, user, -1)
    with pytest.raises(RequestRefused, match="facts: belongs to user 65534"):
        list(read_record_frames(file))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_that_others_may_write_is_refused(file: Path, mode: int) -> None:
    read(file, framed(*payloads(1)))
    file.chmod(mode)
    with pytest.raises(RequestRefused, match=f"facts: .*{mode:04o}"):
        list(read_record_frames(file))


@pytest.mark.timeout(20)
def test_item_that_is_no_regular_file_is_refused(area: Path) -> None:
    os.mkfifo(area / "fifo", 0o600)
    (area / "directory").mkdir(mode=0o700)
    (area / "target").write_bytes(framed(*payloads(1)))
    (area / "link").symlink_to("target")
    for name, why in (
        ("fifo", "is not a regular file"),
        ("directory", "is not a regular file"),
        ("link", "is a symbolic link"),
        ("gone", "is missing"),
    ):
        with pytest.raises(RequestRefused, match=f"{name}: {why}"):
            list(read_record_frames(area / name))
