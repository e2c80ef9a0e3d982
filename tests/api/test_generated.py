"""What is generated from the table of options: keywords, types and the reference. The types are those of the code."""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pcopy
from pcopy.api import functions, signatures
from pcopy.cli.argument_types import Option
from pcopy.cli.programs import load_program
from tests.support.command import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs/reference"))
import draw_python  # type: ignore[import-not-found]

STUB = REPOSITORY / "pcopy/__init__.pyi"
PUBLIC: list[str] = vars(pcopy)["__all__"]


def test_generated_files_are_up_to_date() -> None:
    for file, text in draw_python.generated_files().items():
        assert file.read_text() == text, f"{file}: run docs/reference/draw_python.py"


@pytest.mark.parametrize("program", ["pcopy", "psync", "pverify", "prm", "pchmod", "ptar", "pstripe", "pwalk"])
def test_new_option_becomes_a_keyword(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the files are generated again, the test above fails."""
    command_line = load_program(program)
    new = Option("--new-size", program, command_line.options[0].group, "a new option", value="SIZE")
    names = [name for name in draw_python.FUNCTIONS if getattr(functions, name).program == program and name != "resume"]
    monkeypatch.setitem(command_line.__dict__, "options", (*command_line.options, new))
    names += {"pcopy": ["copytree"], "prm": ["rmtree"]}.get(program, [])
    text = draw_python.stub()
    assert text.count("\n    new_size: int | str | None = ...,\n") == len(names) > 0
    assert '"new_size": {' in draw_python.keywords_module()
    assert "`new_size`" in draw_python.reference()
    monkeypatch.setitem(command_line.__dict__, "options", (*command_line.options, new._replace(value="NEW")))
    with pytest.raises(SystemExit, match="add the placeholder NEW"):
        draw_python.stub()


def test_new_option_of_a_mode_becomes_a_keyword_of_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    command_line = load_program("ptar")
    new = Option(
        "--new-size", "ptar", "what to do", "-c: write PATH; -x: read ARCHIVE", value="SIZE", modes="create list"
    )
    monkeypatch.setitem(command_line.__dict__, "options", (*command_line.options, new))
    having = [
        name for name in draw_python.FUNCTIONS if "new_size" in [each.name for each in draw_python.keywords_of(name)]
    ]
    assert having == ["archive"]
    assert "    - ``new_size``: write source\n" in draw_python.stub()


def test_each_option_is_a_keyword_or_left_out() -> None:
    for program in ("pcopy", "psync", "pverify", "prm", "pchmod", "ptar", "pstripe", "pwalk"):
        names = [name for name in draw_python.FUNCTIONS if getattr(functions, name).program == program]
        known = {keyword.option.key for name in names for keyword in draw_python.keywords_of(name)}
        operands = [getattr(functions, name).operands for name in names]
        parameters = {each for function in operands for each in inspect.signature(function).parameters}
        parameters |= {*draw_python.FUNCTIONS}  # such as --resume
        for option in load_program(program).options:
            name = option.key.replace("-", "_")
            if not name or not option.is_listed or option.help.startswith("no effect"):
                continue
            is_left_out = name in draw_python.LEFT_OUT or f"{program} {name}" in draw_python.LEFT_OUT
            assert option.key in known or name in parameters or is_left_out, (program, option.key)


def test_names_of_the_stub_are_those_of_the_module() -> None:
    defined = {"__version__", "OLDEST_PYTHON", "Paths", "StrOrBytesPath"}
    names: set[str] = set()
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
            assert ast.get_docstring(node), node.name
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("pcopy."):
            names |= {alias.asname or alias.name for alias in node.names}
    assert names - defined == set(PUBLIC)
    for name in PUBLIC:
        assert getattr(pcopy, name) is not None, name
        assert name in dir(pcopy)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pcopy.nothing  # type: ignore[attr-defined]


def test_functions_stay_if_their_namesakes_are_imported() -> None:
    """The packages pcopy.archive, pcopy.jobs and pcopy.walk have names of functions."""
    import pcopy.archive.acl_text
    import pcopy.jobs.lock
    import pcopy.walk.globbing
    from pcopy.jobs import spool

    assert isinstance(spool, ModuleType)
    assert [pcopy.archive, pcopy.jobs, pcopy.walk] == [functions.archive, functions.jobs, functions.walk]


def test_signatures_are_shown_by_notebooks() -> None:
    shown = inspect.signature(pcopy.copy)
    assert list(shown.parameters)[:3] == ["source", "destination", "ranks"]
    assert shown.parameters["existing"].kind is inspect.Parameter.KEYWORD_ONLY
    assert "Copy ``source``" in (inspect.getdoc(pcopy.copy) or "")
    assert repr(pcopy.copy) == "<function pcopy.copy>"


def test_signatures_have_the_types_of_the_stub() -> None:
    """``None`` is the default of each option; the stub writes an ellipsis for all defaults."""
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name not in draw_python.NAMESAKES:
            shown = inspect.signature(getattr(pcopy, node.name))
            parameters = [*node.args.args, *node.args.kwonlyargs]
            written = {each.arg: ast.unparse(each.annotation or each) for each in parameters}
            annotations = {name: str(each.annotation).replace('"', "'") for name, each in shown.parameters.items()}
            assert annotations == written, node.name
            assert shown.return_annotation == ast.unparse(node.returns or node)
            defaults = len(node.args.defaults) + sum(each is not None for each in node.args.kw_defaults)
            assert sum(each.default is not each.empty for each in shown.parameters.values()) == defaults
            assert all(
                shown.parameters[each.arg].kind is inspect.Parameter.KEYWORD_ONLY for each in node.args.kwonlyargs
            )


@pytest.mark.parametrize(("name", "called"), [("copytree", "copy"), ("rmtree", "remove")])
def test_namesakes_of_shutil_have_the_options_of_the_functions_that_they_call(name: str, called: str) -> None:
    nodes = {node.name: node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.FunctionDef)}
    own, other = ({each.arg: ast.unparse(each) for each in nodes[which].args.kwonlyargs} for which in (name, called))
    left_out = {"copytree": {"no_target_directory", "dereference"}, "rmtree": {"from_", "null", "recursive"}}[name]
    assert own == {key: text for key, text in other.items() if key not in left_out} | (
        {"onexc": own["onexc"], "dir_fd": "dir_fd: int | None"} if name == "rmtree" else {}
    )
    parameters = list(inspect.signature(getattr(shutil, name)).parameters)
    assert [each.arg for each in nodes[name].args.args] == [each for each in parameters if each not in own]


@pytest.mark.parametrize("function", draw_python.FUNCTIONS)
def test_help_explains_each_option(function: str) -> None:
    """With a sentence."""
    text = pydoc.plain(pydoc.render_doc(getattr(pcopy, function)))
    assert "\n    Options:\n    \n" in text
    shown = re.findall(r"^    - ``(\w+)``: \S.{10}", text, re.M)
    parameters = inspect.signature(getattr(pcopy, function)).parameters.values()
    own = getattr(pcopy, function).parameters
    assert sorted(shown) == sorted(each.name for each in parameters if each.name not in own) != []


def test_help_without_the_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_STUB", Path("/nonexistent"))
    signatures._docs_of_stub.cache_clear()
    assert (inspect.getdoc(pcopy.sync) or "").startswith("Make ``destination`` equal to ``source``")
    signatures._docs_of_stub.cache_clear()


def test_help_of_an_option() -> None:
    text = pydoc.plain(pydoc.render_doc(pcopy.copy))
    assert "\n    - ``max_errors``: stop after N failed items, with status 75 (default 0: never)\n" in text


def test_help_shows_the_types() -> None:
    text = pydoc.plain(pydoc.render_doc(pcopy.copy)).replace("'", "")
    assert "source: Paths, destination: StrOrBytesPath, *, ranks: int | None = None" in text
    assert 'existing: Literal["replace", "changed", "newer", "skip", "fail"] | None = None' in text
    assert "-> CopyResult" in text
    assert "progress" not in inspect.signature(pcopy.walk).parameters


GOOD = """\
from datetime import timedelta
from pathlib import Path
import pcopy

result: pcopy.CopyResult = pcopy.copy("a", Path("b"), existing="changed", bwlimit=1 << 20, exclude=["x", b"y"])
count: int = pcopy.copy(["a", b"b"], "c", dry_run="all", checkpoint_interval=timedelta(minutes=1), ranks=None).copied
for entry in pcopy.walk("a", ["-type", "f"], newer_than="7d"):
    path: bytes = entry.path
    kind: str = entry.type
    numbers: list[int] = [entry.size, entry.allocated, entry.links, entry.mode, entry.uid, entry.gid, entry.inode]
    numbers += [entry.device, entry.atime_ns, entry.mtime_ns, entry.ctime_ns]
job: pcopy.RunningJob[pcopy.CopyResult] = pcopy.start(pcopy.sync, "a", "b", max_delete=3, launcher=["srun"])
for event in job:
    if isinstance(event, pcopy.Progress):
        print(event.percent)
same: bool | None = pcopy.compare("a", "b", compare=["size"]).same
for difference in pcopy.compare("a", "b").differences:
    print(difference.path + b"")
try:
    pcopy.remove(["a"], progress=lambda progress: print(progress.found))
except pcopy.ItemsFailed as failed:
    names: list[bytes] = [item.path for item in failed]
    if failed.job is not None:
        pcopy.resume(failed.job)
pcopy.discard(pcopy.jobs()[0])
target: Path = pcopy.copytree("a", Path("b"), dirs_exist_ok=True, exclude="x", launcher=["srun"])
pcopy.rmtree(b"a", ignore_errors=True, max_errors=3)


async def wait() -> pcopy.ArchiveResult:
    async with pcopy.start(pcopy.archive, "a", "b.tar") as running:
        async for event in running:
            print(event)
        return await running
"""
BAD = {
    'pcopy.copy("a", "b", exsting="changed")': "call-arg",
    'pcopy.copy("a", "b", existing="old")': "arg-type",
    'pcopy.copy("a", "b", ranks="2")': "arg-type",
    'pcopy.copy("a")': "call-arg",
    'pcopy.copy(1, "b")': "arg-type",
    'pcopy.remove("a", bwlimit=1)': "call-arg",
    'pcopy.copy("a", "b", exclude=[1])': "list-item",
    'pcopy.start(pcopy.copy, "a", "b", exsting="changed")': "call-arg",
    'pcopy.start(pcopy.copy, "a")': "call-arg",
    'pcopy.copytree("a", "b", exclud="x")': "call-arg",
    'pcopy.copytree("a", "b", dereference=True)': "call-arg",
    'pcopy.rmtree("a", force="yes")': "arg-type",
    'pcopy.copy("a", "b").nothing': "attr-defined",
    'pcopy.copy("a", "b").copied = 1': "misc",
    "pcopy.Nothing": "attr-defined",
    'next(pcopy.walk("a")).sizze': "attr-defined",
    'next(pcopy.walk("a")).size = 1.5': "assignment",
}


def test_types_are_checked_by_mypy(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text("import pcopy\n" + "\n".join(BAD) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "--cache-dir"]
    command += [str(tmp_path / "cache"), "good.py", "bad.py"]
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    found = [line for line in run.stdout.splitlines() if ": error: " in line]
    assert [line for line in found if not line.startswith("bad.py:")] == [], run.stdout + run.stderr
    for number, (statement, code) in enumerate(BAD.items(), 2):
        own = [line for line in found if line.startswith(f"bad.py:{number}: ")]
        assert any(line.endswith(f"[{code}]") for line in own), (statement, own)
