"""Mistakes that the interface finds before any program runs, and the advice about them."""

from __future__ import annotations

import stat
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

import pcopy
from pcopy.api import functions

call: Any = pcopy
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "letter": (lambda: call.copy("a", "b", n=4), r"copy\(\) has no option 'n'; use ranks$"),
    "timeout": (lambda: call.sync("a", "b", timeout=4), r"use start\(\), and wait\(timeout\) of the job$"),
    "other word": (lambda: call.copy("a", "b", ignore="x"), r"'ignore'; use exclude$"),
    "nearest": (lambda: call.copy("a", "b", max_deletes=4), r"'max_deletes'; the nearest is 'max_delete'$"),
    "nearest parameter": (lambda: call.walk("a", expresion=[]), r"'expresion'; the nearest is 'expression'$"),
    "one other function": (lambda: call.remove("a", gzip=True), r"'gzip'; archive\(\) has it$"),
    "other functions": (lambda: call.remove("a", backup="b"), r"'backup'; copy\(\), sync\(\) have it$"),
    "several": (lambda: call.copy("a", "b", n=4, foo=1), r"copy\(\) has no option 'n'; use ranks; no option 'foo'$"),
    "copy is recursive": (
        lambda: call.copy("a", "b", recursive=True),
        r"copy\(\) has no option 'recursive': always so$",
    ),
    "modes are, too": (lambda: call.change_modes("a", "u+x", recursive=True), r"'recursive': always so$"),
    "errors of remove": (lambda: call.remove("a", ignore_errors=True), r"'; rmtree\(\) has it; or force=True$"),
    "errors of copy": (lambda: call.copy("a", "b", ignore_errors=True), r"': the other items are processed even if"),
    "missing item": (lambda: call.remove("a", missing_ok=True), r"'missing_ok'; use force$"),
    "compression": (lambda: call.archive("a", "b.tar", compress="gzip"), r"': the name chooses: .tar.gz or .tar.zst$"),
    "format": (lambda: call.archive("a", "b.tar", format="zip"), r"': the name chooses: .tar, .tar.gz or .tar.zst$"),
    "existing directory": (lambda: call.copy("a", "b", dirs_exist_ok=True), r"'dirs_exist_ok'; use copytree\(\)$"),
    "misspelt parameter": (lambda: call.copy(sorce="a", destination="b"), r"'sorce'; the nearest is 'source'$"),
    "recursive": (
        lambda: call.remove("a", recursive=False),
        r"^remove\(recursive=False\): without from_, a path is always removed with its contents$",
    ),
    "always recursive": (lambda: call.remove("a", recursive=True), r"^remove\(recursive=True\): without from_, a path"),
    "list of rmtree": (lambda: call.rmtree("a", from_=["b"]), r"^rmtree\(from_=...\): not an option of rmtree; use"),
    "other function": (lambda: call.start(print), r"started; call it without start\(\)$"),
    "namesake to start": (
        lambda: call.start(call.copytree, "a"),
        r"^start\(copytree\): .*; call it without start\(\)$",
    ),
    "result to start": (
        lambda: call.start(pcopy.UnfinishedJob(job="a" * 90, directory=b"b", state=None)),
        r"^start\(UnfinishedJob\(...\)\): not a function of pcopy that can be started; write start\(pcopy.copy, ",
    ),
    "object to start": (
        lambda: call.start(5),
        r"^start\(5\): .* started; write start\(pcopy.copy, source, destination\)$",
    ),
    "walk is not started": (
        lambda: call.start(call.walk),
        r" started; it yields entries while its program runs: call it$",
    ),
    "contradiction": (
        lambda: call.copy("a", "b", update=True, existing="skip"),
        r"^copy\(update=True, existing='skip'\): update is existing='newer'; leave one out$",
    ),
    "contradiction of a namesake": (
        lambda: call.copytree("a", "b", update=True, existing="fail"),
        r"^copytree\(update=True, existing='fail'\): update is existing='newer'; leave one out$",
    ),
    "job that is not kept": (lambda: call.resume(None), r"^resume\(job=None\): this job was not kept$"),
    "exception as job": (
        lambda: call.resume(pcopy.Stopped("stopped", job="abc")),
        r"^resume\(job=.*\): not the name of a job, which is its attribute job$",
    ),
    "jobs": (lambda: call.jobs(all=True), r"jobs\(\) has no option 'all'$"),
    "discard": (lambda: call.discard("a", older=4), r"discard\(\) has no option 'older'; the nearest is 'older_than'$"),
    "copytree": (lambda: call.copytree("a", "b", max_errrors=4), r"'max_errrors'; the nearest is 'max_errors'$"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(case: str) -> None:
    mistake, text = MISTAKES[case]
    with pytest.raises(pcopy.InvalidOption, match=text):
        mistake()


HUGE = 10**5000
"""A number with more digits than Python converts to text."""
TOO_LARGE: dict[str, tuple[Callable[[], object], str]] = {
    "integer": (lambda: call.copy("a", "b", ranks=HUGE), r"^copy\(ranks=int\(...\)\): too large$"),
    "size": (lambda: call.copy("a", "b", chunk_size=HUGE), r"^copy\(chunk_size=int\(...\)\): too large$"),
    "seconds": (
        lambda: call.copy("a", "b", progress_interval=HUGE),
        r"^copy\(progress_interval=int\(...\)\): too large$",
    ),
    "time": (lambda: call.copy("a", "b", newer_than=HUGE), r"^copy\(newer_than=int\(...\)\): too large$"),
    "time of discard": (lambda: call.discard(older_than=HUGE), r"^discard\(older_than=int\(...\)\): too large$"),
    "text": (lambda: call.copy("a", "b", chown=HUGE), r"^copy\(chown=int\(...\)\): too large$"),
    "word": (lambda: call.copy("a", "b", exclude=[HUGE]), r"^copy\(exclude=list\(...\)\): int\(...\) is not text$"),
    "list": (lambda: call.copy("a", "b", preserve=HUGE), r"^copy\(preserve=int\(...\)\): not a sequence of words"),
    "expression": (lambda: call.walk("a", [HUGE]), r"^walk\(expression=list\(...\)\): int\(...\) is not text$"),
    "mode": (lambda: call.change_modes("a", HUGE), r"^change_modes\(mode=int\(...\)\): not between 0 and 0o7777$"),
    "path": (lambda: call.copy(HUGE, "b"), r"^copy\(source=int\(...\)\): not a path"),
    "job": (lambda: call.resume(HUGE), r"^resume\(job=int\(...\)\): not a path"),
    "infinite": (lambda: call.copy("a", "b", newer_than=inf), r"^copy\(newer_than=inf\): not an age"),
    "no number": (lambda: call.copy("a", "b", newer_than=nan), r"^copy\(newer_than=nan\): not an age"),
    "infinite seconds": (lambda: call.copy("a", "b", progress_interval=-inf), r"=-inf\): not a number of seconds"),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_numbers_that_are_too_large(case: str) -> None:
    mistake, text = TOO_LARGE[case]
    with pytest.raises(pcopy.InvalidOption, match=text):
        mistake()


@pytest.mark.parametrize("function", ["walk", "copy", "discard"])
def test_age_that_is_too_large(area: Path, function: str) -> None:
    requests: dict[str, Callable[[], object]] = {
        "walk": lambda: list(call.walk(area, newer_than=1e308)),
        "copy": lambda: call.copy(area, area / "copy", older_than=1e308),
        "discard": lambda: call.discard(older_than=1e308),
    }
    with pytest.raises(pcopy.Refused, match=r"(newer|older)_than: \d{309}s: too large; see help"):
        requests[function]()


def test_no_expression(tree: Path) -> None:
    assert {entry.path for entry in call.walk(tree, None)} == {entry.path for entry in pcopy.walk(tree)}


class Whole:
    """A whole number of another package, such as NumPy."""

    def __index__(self) -> int:
        return 3


def test_whole_numbers_of_other_packages() -> None:
    assert b"--ranks=3" in functions.copy.request(("a", "b"), {"ranks": Whole()}).words
    for wrong in (True, 3.0, "3"):
        with pytest.raises(pcopy.InvalidOption, match="not a whole number"):
            functions.copy.request(("a", "b"), {"ranks": wrong})


def test_unknown_keyword_of_control(area: Path, tree: Path) -> None:
    with pcopy.start(pcopy.copy, tree, area / "copy", ranks=1) as job:
        control: Any = job.control
        with pytest.raises(pcopy.InvalidOption, match=r"control\(\) has no option 'bwlimt'; the nearest is 'bwlimit'$"):
            control(bwlimt="1G")


@pytest.mark.parametrize(
    ("name", "use"),
    {
        "mirror": "sync",
        "rm": "remove",
        "chmod": "change_modes",
        "copy2": "copy",
        "make_archive": "archive",
        "unpack_archive": "extract",
        "psync": "sync",
        "prm": "remove",
        "pwalk": "walk",
        "ptar": "archive and pcopy.extract",
        "pverify": "verify, pcopy.compare and pcopy.sign",
    }.items(),
)
def test_unknown_function(name: str, use: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; use pcopy\.{use}$"):
        getattr(pcopy, name)


def mode_word(mode: object) -> bytes:
    return functions.change_modes.request(("path", mode), {}).words[-3]


@pytest.mark.parametrize(
    "mode", [755, 644, 700, 750, 600, 640, 660, 664, 775, 777, 770, 711, 444, 400, 440, 555, 2755, 1777]
)
def test_octal_digits_in_decimal_are_refused(mode: int) -> None:
    with pytest.raises(pcopy.InvalidOption, match=rf"this number is {mode:#o}; write 0o{mode}, or '{mode:o}' if"):
        pcopy.change_modes("path", mode)
    assert mode_word(f"{mode:o}") == b"--mode=%o" % mode
    assert mode_word(int(f"{mode}", 8)) == b"--mode=%04d" % mode


@pytest.mark.parametrize("special", range(8))
def test_usual_modes_are_accepted(special: int) -> None:
    """Each number that a file with a usual mode can have."""
    readable = (0, 1, 4, 5, 6, 7)
    triples = [(u, g, o) for u in readable for g in readable for o in readable if u & g == g and g & o == o]
    assert len(triples) == 40
    for user, group, others in triples:
        text = f"{special}{user}{group}{others}"
        assert mode_word(int(text, 8)) == b"--mode=" + text.encode()
        assert mode_word(stat.S_IMODE(stat.S_IFREG | int(text, 8))) == b"--mode=" + text.encode()


def test_numbers_of_other_types() -> None:
    class Number:
        """An integer as numpy has them: no int, but with ``__index__``."""

        def __index__(self) -> int:
            return 0o644

    assert mode_word(Number()) == b"--mode=0644"


@pytest.mark.parametrize("mode", [True, 1.5, b"u+x", "", "rwx r", 0o10000, -1])
def test_what_is_no_mode_is_refused(mode: Any) -> None:
    with pytest.raises(pcopy.InvalidOption):
        pcopy.change_modes("path", mode)


def test_archive_takes_a_list_instead_of_a_source(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(area)
    for name in ("one", "two", "three"):
        Path(name).write_bytes(b"contents")
    assert pcopy.archive(None, "a.tar", from_=["one", "two"]).files == 2
