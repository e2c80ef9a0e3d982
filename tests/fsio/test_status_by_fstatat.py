"""On Linux before 4.11, which has no statx(2), the C backend gets the status of items from fstatat(2)."""

from __future__ import annotations

from pathlib import Path

from tests.support import native
from tests.support.command import succeed
from tests.support.faults import Fault
from tests.support.oracle import differences
from tests.support.trees import random_tree


def test_trees_are_copied_and_updated_without_statx(area: Path) -> None:
    native.require()
    source, copy = area / "source", area / "copy"
    random_tree(source, 5, files=60, largest=1 << 20)
    for number, program in enumerate(("pcopy", "psync", "pverify")):
        fault = Fault(area / f"log{number}", ["statx"], None, "ENOSYS")
        words: dict[str, list[str | Path]] = {
            "pcopy": ["-T", source, copy],
            "psync": [f"{source}/", f"{copy}/"],
            "pverify": [source, copy],
        }
        succeed(*words[program], program=program, wrap=fault.wrap(), env={"PCOPY_BACKEND": "c"})
        if program != "pverify":
            fault.check()
        assert not differences(source, copy)
