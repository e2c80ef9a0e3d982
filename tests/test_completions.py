"""Completion of command lines: in a real bash, and in zsh and fish where they are installed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pcopy.cli.programs import PROGRAMS
from tests.support.command import RUN

ROOT = Path(__file__).resolve().parents[1]
COMPLETIONS = ROOT / "completions"
JOB = "0123456789"


def test_completions_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, COMPLETIONS / "draw_completions.py", "--check"], check=False, capture_output=True, text=True
    )
    reported = "python completions/draw_completions.py draws them anew"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), reported


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_of_all_programs_are_installed(shell: str) -> None:
    listed = (ROOT / "setup.cfg").read_text().partition("[options.data_files]")[2].partition("\n[")[0]
    files = sorted(str(file.relative_to(ROOT)) for file in (COMPLETIONS / shell).iterdir())
    others = set() if shell == "zsh" else {"pcopy-tar"}  # zsh finds it in the first line of _ptar.
    names = sorted(others | RUN.keys() - {"late"})
    assert sorted(Path(file).name.removesuffix(".fish").lstrip("_") for file in files) == names
    assert [file for file in files if f"    {file}\n" not in f"{listed}\n"] == []


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some files, and a pcopy with one stored job."""
    top = tmp_path_factory.mktemp("completed")
    for name in ("results", "two words"):
        (top / name).mkdir()
    (top / "list.txt").touch()
    (top / "bin").mkdir()
    program = top / "bin" / "pcopy"
    program.write_text(f"#!/bin/sh\necho 'JOB         BEGUN'\necho '{JOB}  2026-11-24 14:28  failed items'\n")
    program.chmod(0o755)
    return top


def in_bash(place: Path, *words: str, program: str = "pcopy") -> list[str]:
    """Return the completions that bash offers for the last word."""
    script = f"""
        source {COMPLETIONS}/bash/{program} || exit 3
        function=_{program.removeprefix("pcopy-tar") or "ptar"}
        [[ $(complete -p {program}) == "complete -F $function {program}" ]] || exit 4
        COMP_WORDS=({program} "$@") COMP_CWORD=$#
        $function
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{place}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words],
        check=True,
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1] if done.stdout != "\n" else []


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["--exis"], ["--existing"]),
        (["--existing", "ne"], ["newer"]),
        (["--existing", "=", "ch"], ["changed"]),
        (["--existing", "="], ["replace", "changed", "newer", "skip", "fail"]),
        (["--hash", "b"], ["blake3"]),
        (["-n", ""], []),
        (["--errors", "li"], ["list.txt"]),
        (["--checkpoint", ""], ["bin", "results", "two words"]),
        (["--resume", ""], [JOB]),
        (["--resume", JOB, "--disc"], ["--discard"]),
        (["--discard", "0"], [JOB]),
        (["--progress", "--jso"], ["--json"]),
        (["--progress", "b"], ["bar"]),
        (["results", "two"], ["two words"]),
        (["-a", ""], ["bin", "list.txt", "results", "two words"]),
        (["--preserve", "m"], ["mode"]),
        (["--preserve", "mode,acl,x"], ["mode,acl,xattr"]),
        (["--no-preserve", "=", "mode,m"], []),
    ],
)
def test_bash_completes(words: list[str], offered: list[str], place: Path) -> None:
    assert sorted(in_bash(place, *words)) == sorted(offered)


@pytest.mark.parametrize(
    ("program", "words", "offered"),
    [
        ("pwalk", ["results", "-na"], ["-name"]),
        ("pwalk", ["results", "-type", ""], ["b", "c", "d", "p", "f", "l", "s"]),
        ("pwalk", ["results", "-type", "f,d,"], [f"f,d,{letter}" for letter in "bcpls"]),
        ("pwalk", ["results", "-newer", "li"], ["list.txt"]),
        ("pwalk", ["results", "-user", "roo"], ["root"]),
        ("pwalk", ["results", "-name", ""], []),
        ("pwalk", ["results", "-size", "+1G", "-mti"], ["-mtime"]),
        ("pwalk", ["--fields", "mode,siz"], ["mode,size"]),
        ("pverify", ["--compare", "size,mt"], ["size,mtime"]),
        ("pdbench", ["--tests", "stat,st"], []),
        ("ptar", ["-x"], ["-x"]),
    ],
)
def test_bash_completes_tests_and_lists(program: str, words: list[str], offered: list[str], place: Path) -> None:
    assert sorted(in_bash(place, *words, program=program)) == sorted(offered)


@pytest.mark.parametrize("shell", ["zsh/_ptar", "fish/ptar.fish"])
def test_descriptions_are_not_cut_after_the_operation(shell: str) -> None:
    """Such as ``-c: archive only what FILE lists``."""
    text = (COMPLETIONS / shell).read_text()
    assert "-c: PATHs are relative to DIR" in text
    assert "-c: archive only what FILE lists" in text
    assert re.findall(r"[\['](?:-[cxt](?:, | and )?)+[\]']", text) == []


def test_bash_offers_the_options_of_the_help(place: Path) -> None:
    for program in PROGRAMS:
        assert "--json" in in_bash(place, "--", program=program)
    assert "--create" in in_bash(place, "--cr", program="pverify")
    assert in_bash(place, "--extr", program="pcopy-tar") == ["--extract"]
    assert in_bash(place, "--cr", program="prm") == []
    assert "-p" not in in_bash(place, "-")  # it is accepted, and has no effect


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("pcopy --exis", ["--existing"]),
        ("pcopy --existing ne", ["newer"]),
        ("pcopy --discard 0", [JOB]),
        ("pcopy --errors li", ["list.txt"]),
        ("pverify --cr", ["--create"]),
        ("pcopy --preserve mode,ow", ["mode,ownership"]),
        ("pcopy --preserve=mode,ow", ["--preserve=mode,ownership"]),
        ("pcopy --preserve mode,mo", []),
        ("pverify --compare size,mt", ["size,mtime"]),
        ("pwalk results -na", ["-name"]),
        ("pwalk results -type f,d,", [f"f,d,{letter}" for letter in "bclps"]),
        ("pwalk results -newer li", ["list.txt"]),
        ("pcopy-tar --extr", ["--extract"]),
    ],
)
def test_fish_completes(line: str, offered: list[str], place: Path) -> None:
    if not shutil.which("fish"):
        pytest.skip("there is no fish here")
    files = " ".join(map(str, (COMPLETIONS / "fish").iterdir()))
    script = f"for file in {files}; source $file; end; complete -C '{line}'"
    environment = {**os.environ, "PATH": f"{place}/bin:{os.environ['PATH']}", "HOME": str(place)}
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], check=True, cwd=place, env=environment, capture_output=True, text=True
    )
    assert [found.partition("\t")[0] for found in done.stdout.splitlines()] == offered


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("pcopy --exis", "pcopy --existing"),
        ("pcopy --existing ne", "pcopy --existing newer"),
        ("pcopy --hash=bl", "pcopy --hash=blake3"),
        ("pcopy --discard 0", f"pcopy --discard {JOB}"),
        ("pverify --cr", "pverify --create"),
        ("pcopy --errors li", "pcopy --errors list.txt"),
        ("pcopy --preserve mode,ow", "pcopy --preserve mode,ownership"),
        ("pcopy --preserve=mode,ow", "pcopy --preserve=mode,ownership"),
        ("pverify --compare size,mt", "pverify --compare size,mtime"),
        ("pwalk results -na", "pwalk results -name"),
        ("pwalk results -newer li", "pwalk results -newer list.txt"),
        ("pwalk --fields mode,si", "pwalk --fields mode,size"),
        ("pcopy-tar --extr", "pcopy-tar --extract"),
    ],
)
def test_zsh_completes(typed: str, completed: str, place: Path) -> None:
    if not shutil.which("zsh"):
        pytest.skip("there is no zsh here")
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(place)
        os.environ.update(PATH=f"{place}/bin:{os.environ['PATH']}", HOME=str(place), TERM="dumb", PS1="", PROMPT="")
        os.execvp("zsh", ["zsh", "-f", "-i"])
    try:
        os.write(terminal, f"fpath=({COMPLETIONS}/zsh $fpath); autoload -Uz compinit; compinit -u -D\n".encode())
        os.write(terminal, b"PROMPT=; print -r rea''dy\n")
        assert "ready" in read_until(terminal, "ready\r\n")
        os.write(terminal, f"{typed}\t".encode())
        assert completed in read_until(terminal, completed)
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


@pytest.mark.parametrize("name", ["zsh/_ptar", "fish/ptar.fish"])
def test_letters_of_ptar_are_not_completed_to_one_with_a_digit(name: str) -> None:
    """``-x`` followed by a tab would become ``-x0``."""
    assert re.findall(r"(?:-s |[{,'])-?0\b.*null", (COMPLETIONS / name).read_text()) == []


def read_until(terminal: int, wanted: str) -> str:
    reported, until = b"", time.monotonic() + 20
    while wanted.encode() not in reported and time.monotonic() < until:
        if select.select([terminal], [], [], 0.2)[0]:
            reported += os.read(terminal, 4096)
    return reported.decode(errors="replace")
