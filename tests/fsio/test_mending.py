"""When metadata of an item counts as equal to that of its source. ``tests/e2e/test_mending.py`` tests the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pcopy.fsio.backend.batches import CompareXattrsBatch
from pcopy.fsio.backend.columns import OutcomeCode
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.metadata_update import is_time_equal_as_stored
from pcopy.fsio.preserve import PreservedMetadataKinds
from tests.fsio.backend_bench import BACKENDS, done
from tests.support.attributes import acl, has_acls, has_xattrs

SECOND = 10**9
NOW = 1_700_000_000 * SECOND


@pytest.mark.parametrize(
    ("source", "present", "changed", "window", "same"),
    [
        (NOW, NOW, NOW + 1, 0, True),
        (NOW + 1, NOW, NOW + 123_456_789, 0, False),
        (NOW + 123_456_789, NOW, NOW + 9 * SECOND, 0, True),  # a file system that stores seconds
        (NOW + 123_456_789, NOW + 1, NOW + 9 * SECOND, 0, False),
        (NOW + 123_456_789, NOW + 123_456_700, NOW + 900, 0, True),  # or tenths of a microsecond
        (NOW + 123_456_789, NOW + 120_000_000, NOW + 70_000_000, 0, True),
        (NOW + 123_456_789, NOW + 130_000_000, NOW + 70_000_000, 0, False),
        (NOW + SECOND + 5, NOW, NOW + 70 * SECOND, 0, True),  # FAT
        (NOW + SECOND + 5, NOW, NOW + 71 * SECOND, 0, False),
        (NOW + 123_456_789, NOW + 123_000_000, NOW + 7_000_000, 0, True),  # milliseconds
        (-SECOND - 1, -2 * SECOND, 5 * SECOND, 0, True),  # rounded down, also before 1970
        (NOW, NOW + 2 * SECOND, NOW + 1, 2, True),
        (NOW, NOW + 3 * SECOND, NOW + 1, 2, False),
    ],
)
def test_stored_times_are_compared_with_file_system_precision(
    source: int, present: int, changed: int, window: int, same: bool
) -> None:
    assert is_time_equal_as_stored(source, present, changed, window) == same


CASES = {
    # attributes of the source, of the target, and which comparisons (all, without ACLs, neither) find them equal
    "none": ({}, {}, "yyy"),
    "alike": ({"user.a": b"1", "user.b": b"2"}, {"user.b": b"2", "user.a": b"1"}, "yyy"),
    "another value": ({"user.a": b"1"}, {"user.a": b"2"}, "nny"),
    "a longer value": ({"user.a": b"1"}, {"user.a": b"12"}, "nny"),
    "missing": ({"user.a": b"1", "user.b": b"1"}, {"user.b": b"1"}, "nny"),
    "extra": ({}, {"user.a": b"1"}, "nny"),
    "acl": ({"system.posix_acl_access": acl(6, 4, 0, {1000: 4})}, {}, "nny"),
    "another acl": (
        {"system.posix_acl_access": acl(6, 4, 0, {1000: 4})}, {"system.posix_acl_access": acl(6, 4, 0, {1000: 6})},
        "nny",
    ),
    "the same acl": ({"system.posix_acl_access": acl(6, 4, 0, {1000: 4})},) * 2 + ("yny",),
}  # fmt: skip
PRESERVED = (
    PreservedMetadataKinds(),
    PreservedMetadataKinds(acl=False),
    PreservedMetadataKinds(acl=False, xattr=False),
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_attributes_are_compared(tmp_path: Path, backend: str) -> None:
    if not (has_xattrs(os.fsencode(tmp_path)) and has_acls(os.fsencode(tmp_path))):
        pytest.skip("the file system has no attributes or ACLs")
    for side in ("source", "copy"):
        (tmp_path / side).mkdir()
    names = sorted(CASES)
    for name in names:
        for side, attributes in zip(("source", "copy"), CASES[name][:2], strict=True):
            (tmp_path / side / name).touch()
            for attribute, value in attributes.items():
                os.setxattr(tmp_path / side / name, attribute, value)
    (tmp_path / "source/gone").touch()
    (tmp_path / "copy/link").symlink_to(tmp_path / "source/another value")
    (tmp_path / "source/link").symlink_to("nowhere")
    packed = "/".join([*names, "gone", "link"]).encode()
    directories = [os.open(tmp_path / side, os.O_RDONLY) for side in ("source", "copy")]
    try:
        for index, preserve in enumerate(PRESERVED):
            made = BACKENDS[backend](BackendSettings(preserve, 0o022))
            for _ in range(2):  # the first time a backend may have to learn the attributes
                codes = done(made, CompareXattrsBatch(directories[0], packed, directories[1])).verdicts.codes
            made.close()
            wanted = [OutcomeCode.DONE if CASES[name][2][index] == "y" else OutcomeCode.SLOW_PATH for name in names]
            gone = OutcomeCode.DONE if backend.startswith("c") and index == 2 else OutcomeCode.SLOW_PATH
            assert list(codes) == [*wanted, gone, OutcomeCode.DONE]
    finally:
        for directory in directories:
            os.close(directory)
