"""``copytree`` and ``rmtree`` do what the functions of ``shutil`` do; these are the oracle."""

from __future__ import annotations

import errno
import fnmatch
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pcopy
from tests.api.conftest import child
from tests.support.filesystems import mounted
from tests.support.oracle import differences
from tests.support.users import require_root

Function = Callable[..., Any]
BOTH = pytest.mark.parametrize("module", [shutil, pcopy], ids=["shutil", "pcopy"])
"""Both functions must pass the test."""


@pytest.fixture
def plain(area: Path) -> Path:
    """A tree without the items that shutil cannot copy."""
    top = area / "plain"
    (top / "inner/deep").mkdir(parents=True)
    (top / "inner/file").write_bytes(b"contents")
    (top / "inner/file.pyc").write_bytes(b"compiled")
    for name in ("#hash", "!bang", "back\\slash"):
        (top / name).write_bytes(b"")
    (top / "link").symlink_to("inner/file")
    (top / "inner").chmod(0o750)
    os.utime(top / "inner/file", ns=(10**18 + 1, 10**18 + 7))
    return top


def names(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*")}


@BOTH
@pytest.mark.parametrize("symlinks", [False, True])
def test_copytree(area: Path, plain: Path, module: Any, symlinks: bool) -> None:
    target = area / "new/copy"
    assert module.copytree(plain, target, symlinks) is target
    assert (target / "link").is_symlink() == symlinks
    assert (target / "link").read_bytes() == b"contents"
    assert names(target) == names(plain)
    assert (target / "inner/file").stat().st_mtime_ns == (plain / "inner/file").stat().st_mtime_ns
    if symlinks:
        assert differences(plain, target) == []


@BOTH
def test_copytree_into_an_existing_directory(area: Path, plain: Path, module: Any) -> None:
    (area / "copy").mkdir()
    (area / "copy/kept").touch()
    with pytest.raises(FileExistsError) as refused:
        module.copytree(str(plain), str(area / "copy"))
    assert (refused.value.errno, refused.value.filename) == (errno.EEXIST, str(area / "copy"))
    assert module.copytree(str(plain), str(area / "copy"), dirs_exist_ok=True) == str(area / "copy")
    assert names(area / "copy") == names(plain) | {"kept"}


@BOTH
@pytest.mark.parametrize("source", ["missing", "plain/inner/file"])
def test_copytree_of_what_is_no_directory(area: Path, plain: Path, module: Any, source: str) -> None:
    with pytest.raises(FileNotFoundError if source == "missing" else NotADirectoryError) as refused:
        module.copytree(area / source, area / "copy")
    assert os.fspath(refused.value.filename) == str(area / source)
    assert not (area / "copy").exists()


@BOTH
@pytest.mark.parametrize(
    "patterns", [("*.pyc", "deep"), ("#*",), ("[!fi]*",), ("!*", ""), ("back\\slash",), ("inner/file",), ()]
)
def test_copytree_with_patterns(area: Path, plain: Path, module: Any, patterns: tuple[str, ...]) -> None:
    module.copytree(plain, area / "copy", ignore=shutil.ignore_patterns(*patterns), symlinks=True)
    shutil.copytree(plain, area / "expected", ignore=shutil.ignore_patterns(*patterns), symlinks=True)
    assert names(area / "copy") == names(area / "expected")


@BOTH
def test_copytree_with_failures(area: Path, plain: Path, module: Any) -> None:
    (area / "copy/inner/file/file").mkdir(parents=True)
    with pytest.raises(shutil.Error) as failed:
        module.copytree(str(plain), str(area / "copy"), dirs_exist_ok=True)
    ((source, target, why),) = failed.value.args[0]
    assert (source, target) == (str(plain / "inner/file"), str(area / "copy/inner/file"))
    assert isinstance(why, str)
    assert (area / "copy/inner/file.pyc").exists()
    if module is pcopy:
        assert isinstance(failed.value.__cause__, pcopy.ItemsFailed)
        assert failed.value.__cause__.job == pcopy.jobs()[0].job


@BOTH
def test_copytree_to_a_full_file_system(area: Path, plain: Path, module: Any) -> None:
    require_root("mount a file system")
    (plain / "large").write_bytes(os.urandom(3 << 20))
    (area / "mounted").mkdir()
    with mounted("tmpfs", area / "mounted", size=1 << 20) as point:
        with pytest.raises(shutil.Error) as failed:
            module.copytree(str(plain), str(point / "copy"))
        entries = failed.value.args[0]
        if module is pcopy:
            source, target, why = entries[-1]
            assert (source, target) == (str(plain), str(point / "copy"))
            cause = failed.value.__cause__
            assert isinstance(cause, pcopy.Stopped)
            assert why == str(cause)
            assert "full" in why or "No space left" in why
            assert cause.job
            pcopy.discard(cause.job)
        else:
            assert (str(plain / "large"), str(point / "copy/large")) in [entry[:2] for entry in entries]
            assert all("No space left on device" in why for _, _, why in entries)


@pytest.mark.parametrize("way", ["error", "ignore_errors", "onexc"])
def test_rmtree_that_is_stopped(plain: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    child(plain.parent, monkeypatch, "import os; os.write(2, b'prm: stopped by SIGTERM\\n'); os._exit(143)")
    calls: list[Any] = []
    if way == "error":
        with pytest.raises(OSError, match="stopped by SIGTERM") as failed:
            pcopy.rmtree(plain)
        calls = [(os.rmdir, plain, failed.value)]
    elif way == "ignore_errors":
        pcopy.rmtree(plain, ignore_errors=True)
        return
    else:
        pcopy.rmtree(plain, onexc=lambda *arguments: calls.append(arguments))
    ((function, path, error),) = calls
    assert (function, path, error.errno, error.filename) == (os.rmdir, plain, errno.EINTR, plain)
    assert isinstance(error.__cause__, pcopy.Stopped)


@BOTH
def test_copytree_with_dangling_links(area: Path, plain: Path, module: Any) -> None:
    (plain / "inner/dangling").symlink_to("nowhere")
    with pytest.raises(shutil.Error) as failed:
        module.copytree(str(plain), str(area / "copy"))
    assert [each[0] for each in failed.value.args[0]] == [str(plain / "inner/dangling")]
    module.copytree(plain, area / "other", ignore_dangling_symlinks=True)
    assert not os.path.lexists(area / "other/inner/dangling")
    if module is pcopy:
        assert [job.destination for job in pcopy.jobs()] == [str(area / "copy")]


@BOTH
@pytest.mark.parametrize("pattern", ["[!a]*", "*[!a]", "a*[!a-z]", "!*", "[a]*", "*[a9]", "caf\udce9", "*\udce9"])
def test_pattern_and_names_that_are_not_ascii(area: Path, module: Any, pattern: str) -> None:
    found = ["a", "é", "aé", "éa", "ab", "ba", "a€", "😀", "!é", "!a", "caf\udce9", "\udcff", "\udcffa", "a9"]
    (area / "named").mkdir()
    for name in found:
        (area / "named" / name).touch()
    module.copytree(area / "named", area / "copy", ignore=shutil.ignore_patterns(pattern))
    assert {*os.listdir(area / "copy")} == {name for name in found if not fnmatch.fnmatchcase(name, pattern)}


@pytest.mark.parametrize("pattern", ["caf?", "?", "a?*", "[!a]", "a[!b]c", "[^a]*", "[é]*", "[]a]"])
def test_pattern_that_may_mean_another_thing_is_refused(area: Path, plain: Path, pattern: str) -> None:
    with pytest.raises(pcopy.InvalidOption, match="use the option exclude"):
        pcopy.copytree(plain, area / "copy", ignore=shutil.ignore_patterns(pattern))
    assert not (area / "copy").exists()


def test_copytree_refuses_what_it_cannot_do(area: Path, plain: Path) -> None:
    with pytest.raises(pcopy.InvalidOption, match="ignore_patterns"):
        pcopy.copytree(plain, area / "copy", ignore=lambda path, names: [])
    with pytest.raises(pcopy.InvalidOption, match="copy2"):
        pcopy.copytree(plain, area / "copy", copy_function=shutil.copy)
    assert not (area / "copy").exists()


def test_copytree_takes_options_of_copy(area: Path, plain: Path) -> None:
    pcopy.copytree(plain, area / "copy", symlinks=True, exclude="*.pyc", ranks=1)
    assert names(area / "copy") == names(plain) - {"inner/file.pyc"}


@BOTH
@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_rmtree(plain: Path, module: Any, kind: Callable[[Any], Any]) -> None:
    module.rmtree(kind(str(plain)))
    assert not plain.exists()


@BOTH
@pytest.mark.parametrize("name", ["missing", "plain/link", "plain/inner/file"])
def test_rmtree_of_what_is_no_directory(area: Path, plain: Path, module: Any, name: str) -> None:
    kinds = {"missing": FileNotFoundError, "plain/link": OSError, "plain/inner/file": NotADirectoryError}
    with pytest.raises(kinds[name]):
        module.rmtree(area / name)
    module.rmtree(area / name, ignore_errors=True)
    calls: list[Any] = []
    module.rmtree(area / name, onerror=lambda function, path, info: calls.append((path, info[0])))
    assert calls
    assert {path for path, _ in calls} == {area / name}
    assert all(issubclass(kind, kinds[name]) for _, kind in calls)
    assert names(plain) == names(plain) | {"inner/file", "link"}


@BOTH
@pytest.mark.parametrize("name", [".", "inner/.", "inner/..", ""])
def test_rmtree_of_what_rmdir_refuses(plain: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """shutil removes the contents before rmdir refuses the directory; here nothing is removed."""
    monkeypatch.chdir(plain)
    calls: list[Any] = []
    module.rmtree(name, onerror=lambda function, path, info: calls.append(info[1]))
    assert isinstance(calls[-1], OSError)
    module.rmtree(name, ignore_errors=True)
    if module is pcopy:
        assert (plain / "inner/file").read_bytes() == b"contents"
    with pytest.raises(FileNotFoundError if name == "" else OSError):
        module.rmtree(name)


@BOTH
def test_rmtree_with_failures(plain: Path, module: Any) -> None:
    """A mount point cannot be removed."""
    require_root("mount a file system")
    with mounted("tmpfs", plain / "inner/deep") as point:
        busy = str(point)
        calls: list[tuple[Any, str, Any]] = []
        module.rmtree(str(plain), onerror=lambda function, path, info: calls.append((function, path, info[1])))
        assert (busy, errno.EBUSY) in [(path, error.errno) for _, path, error in calls]
        assert all(callable(function) for function, _, _ in calls)
        assert not (plain / "#hash").exists()
        with pytest.raises(OSError, match="busy") as failed:
            module.rmtree(str(plain))
        assert os.path.basename(failed.value.filename) == point.name  # shutil has the last component only
        module.rmtree(str(plain), ignore_errors=True)
        assert os.path.ismount(busy)
    module.rmtree(str(plain))
    assert not plain.exists()


def test_rmtree_handlers_of_newer_pythons(area: Path) -> None:
    calls: list[Any] = []
    pcopy.rmtree(area / "missing", onexc=lambda function, path, error: calls.append((function, path, error)))
    ((function, path, error),) = calls
    assert (function, path, type(error)) == (os.scandir, area / "missing", FileNotFoundError)
    with pytest.raises(NotImplementedError):
        pcopy.rmtree("missing", dir_fd=3)
    assert pcopy.rmtree.avoids_symlink_attacks  # type: ignore[attr-defined]


@pytest.mark.parametrize("function", [partial(pcopy.copytree, "source", "copy"), partial(pcopy.rmtree, "source")])
def test_unknown_option_names_the_function(area: Path, function: partial[object]) -> None:
    with pytest.raises(pcopy.InvalidOption) as invalid:
        function(no_such_option=1)
    name = getattr(function.func, "__name__", "")
    assert str(invalid.value).startswith(f"{name}() has no option 'no_such_option'")
    with pytest.raises(pcopy.InvalidOption) as invalid:
        function(ranks="two")
    assert str(invalid.value) == f"{name}(ranks='two'): not a whole number"
