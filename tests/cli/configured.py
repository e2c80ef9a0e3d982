"""Configuration files in tests, and the result of command lines combined with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pcopy.cli import program as cli_program
from pcopy.cli.pcopy import PCOPY
from pcopy.cli.program import ProgramCommandLine
from pcopy.fsio.preserve import PRESERVABLE_METADATA
from pcopy.tools.arguments import CopyArguments
from tests.support import refusals

Files = Callable[..., None]


@pytest.fixture
def files(area: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """A function that writes the system's file, the user's file, and ``more.yaml`` in the working directory."""
    (area / "user").mkdir()
    monkeypatch.setattr(cli_program, "SYSTEM_CONFIG_FILE", os.fsencode(area / "system.yaml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(area / "user"))
    monkeypatch.chdir(area)

    def write(system: str | None = None, user: str | None = None, more: str | None = None) -> None:
        for name, text in (("system.yaml", system), ("user/pcopy.yaml", user), ("more.yaml", more)):
            (area / name).unlink(missing_ok=True)
            if text is not None:
                (area / name).write_text(text)

    return write


def parse(*words: str) -> CopyArguments:
    parsed: CopyArguments = PCOPY.parse_command_line([*words, "a", "b"])
    return parsed


def preserved(*words: str) -> set[str]:
    preserve = parse(*words).options.preserve
    return {name for name in PRESERVABLE_METADATA if getattr(preserve, name)}


def refusal(*words: str, program: ProgramCommandLine = PCOPY) -> str:
    return refusals.refusal(lambda: program.parse_command_line([*words, "a", "b"]))


def shown(*words: str, program: ProgramCommandLine = PCOPY) -> str:
    text = program.output_if_no_ranks_needed(["--show-config", *words])
    assert text is not None
    return text
