"""The examples of the page "From Python" run as they are written. Small stand-ins take the place of other packages."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import pcopy
from pcopy.api import functions
from tests.support.command import REPOSITORY
from tests.support.oracle import differences

PAGE = REPOSITORY / "docs/howto/python.md"
BLOCKS: list[str] = re.findall(r"^```\w*\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.M)
USED: set[str] = set()
"""The examples that tests have asked for."""


@pytest.fixture(scope="module", autouse=True)
def all_examples_are_used(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the tests of this file, unless only some were selected, each example of the page has been run."""
    yield
    selected = {item.name for item in request.session.items if item.path == Path(__file__)}
    if selected == {name for name in globals() if name.startswith("test_")}:
        assert [text for text in BLOCKS if text not in USED] == []


def block(words: str) -> str:
    """Return the only example that contains ``words``."""
    (found,) = [text for text in BLOCKS if words in text]
    USED.add(found)
    return found


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(text, str(PAGE), "exec"), names)
    return names


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Have ``name`` be a module with these members."""
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)


@pytest.fixture(autouse=True)
def data(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory of the examples."""
    monkeypatch.chdir(area)
    (area / "results/run1").mkdir(parents=True)
    (area / "archive").mkdir()
    (area / "results/run1/large.h5").write_bytes(os.urandom(2 << 20))
    (area / "results/notes.tmp").write_bytes(b"notes")


def test_functions(area: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(block("pcopy.change_modes"))
    assert "large.h5" in capsys.readouterr().out
    assert sorted(os.listdir(area / "archive")) == ["results"]
    assert not (area / "mirror").exists()
    assert (area / "results.tar.zst").exists()
    assert differences(area / "results", area / "unpacked/results") == []
    assert [str(path.relative_to(area)) for path in (area / "large").rglob("*.h5")] == ["large/run1/large.h5"]


def test_reason_of_a_refusal(area: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(block("errno.EEXIST"))
    assert (area / "results.sig").read_bytes()
    assert capsys.readouterr().out == ""
    run(block("errno.EEXIST"))
    assert capsys.readouterr().out == "b'results.sig' exists already\n"


def test_errors(area: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (area / "archive/results/notes.tmp/full").mkdir(parents=True)
    resume = functions.resume

    def repair_and_resume(job: str) -> Any:
        shutil.rmtree(area / "archive/results/notes.tmp")
        return resume(job)

    monkeypatch.setattr(functions, "resume", repair_and_resume)
    run(block("except pcopy.ItemsFailed"))
    assert "notes.tmp" in capsys.readouterr().out
    assert differences(area / "results", area / "archive/results") == []


def test_running_job(capsys: pytest.CaptureFixture[str]) -> None:
    names = run(block("event.bytes_per_second"))
    assert isinstance(names["result"], pcopy.CopyResult)
    assert capsys.readouterr().out.startswith("copy ")


def test_notebook(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bar:
        n = 0.0

        def __init__(self, total: int, unit: str) -> None:
            assert (total, unit) == (100, "%")

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, step: float) -> None:
            self.n += step

    module(monkeypatch, "tqdm")
    module(monkeypatch, "tqdm.auto", tqdm=Bar)
    names = run(block("bar.update"))
    assert 0 <= names["bar"].n <= 100
    assert differences(area / "results", area / "archive/results") == []


def test_rule_for_snakemake(area: Path) -> None:
    text = block("rule stage")
    rule = dict(re.findall(r"^    (input|output|params): (.*)$", text, re.M))
    body = re.sub(r"^        ", "", text.partition("    run:\n")[2], flags=re.M)
    params = eval(f"SimpleNamespace({rule['params']})")
    names = {"pcopy": pcopy, "input": [eval(rule["input"])], "params": params, "threads": 2}
    assert eval(rule["output"], {"touch": str}) == "stage.done"  # not the copy, which Snakemake would delete
    exec(body, names)
    assert differences(area / "results", area / "stage") == []
    (area / "stage/notes.tmp").unlink()  # as if a run had been interrupted
    exec(body, names)
    assert differences(area / "results", area / "stage") == []


def test_task_for_airflow(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "airflow")
    module(monkeypatch, "airflow.decorators", task=lambda **_: lambda function: function)
    stage = run(block("from airflow"))["stage"]
    (area / "copy/notes.tmp/full").mkdir(parents=True)
    with pytest.raises(pcopy.ItemsFailed):
        stage("results", "copy")
    os.removedirs(area / "copy/notes.tmp/full")
    (area / "copy").mkdir(exist_ok=True)
    assert stage("results", "copy") > 2 << 20
    assert differences(area / "results", area / "copy") == []
    assert not (area / "copy.job").exists()


def test_app_for_parsl(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def python_app(function: Callable[..., int]) -> Callable[..., Any]:
        return lambda *words: SimpleNamespace(result=lambda: function(*words))

    module(monkeypatch, "parsl", python_app=python_app)
    assert run(block("parsl"))["stage"]("results", "copy").result() > 2 << 20
    assert differences(area / "results", area / "copy") == []


def test_portal(area: Path) -> None:
    names = run(block("start_unix_server"))

    async def ask(*requests: str) -> list[str]:
        portal = asyncio.create_task(names["portal"]())
        while not (area / "portal.socket").exists():
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_unix_connection(str(area / "portal.socket"))
        answers = []
        for request in requests:
            writer.write(f"{request}\n".encode())
            answers.append((await reader.readline()).decode().strip())
        writer.close()
        portal.cancel()
        return answers

    requests = ("start results archive", "wait 0", "progress 0", "start missing x", "wait 1", "stop 1", "no", "stop 7")
    answers = asyncio.run(ask(*requests))
    assert answers[:2] == ["0", "4 copied"]
    assert re.fullmatch(r"copy \d of \d", answers[2])
    assert answers[4].startswith("error: missing: does not exist")
    assert answers[5:] == ["stopping", "?", "error: no transfer 7"]
    assert differences(area / "results", area / "archive/results") == []
