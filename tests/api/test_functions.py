"""Each function does what its program does, and returns its summary. Other programs compute the expected results."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import pcopy
from pcopy.api import functions, results
from tests.support.command import pcopy as run_pcopy
from tests.support.command import show
from tests.support.oracle import differences, snapshot

ODD = b"\xff\xfe\n"


def find(top: Path) -> set[bytes]:
    run = subprocess.run(["find", os.fsencode(top), "-print0"], check=True, capture_output=True)
    return set(run.stdout.split(b"\0")[:-1])


class TestCopies:
    def test_copy_is_faithful(self, area: Path, tree: Path) -> None:
        result = pcopy.copy(tree, area / "copy", ranks=2)
        assert differences(tree, area / "copy") == []
        assert (result.found, result.copied, result.failed, result.ranks) == (len(find(tree)), len(find(tree)), 0, 2)
        assert (result.hardlinks, result.symlinks, result.special) == (1, 1, 1)
        assert result.job is None
        assert pcopy.jobs() == []

    @pytest.mark.parametrize("kind", [str, os.fsencode, Path])
    def test_paths_of_each_kind(self, area: Path, tree: Path, kind: Callable[[str], Any]) -> None:
        (area / "into").mkdir()
        pcopy.copy([kind(str(tree / "inner")), kind(str(tree / "link"))], kind(str(area / "into")))
        assert {path.name for path in (area / "into").iterdir()} == {"inner", "link"}

    def test_names_that_are_not_utf8(self, area: Path, tree: Path) -> None:
        odd = os.fsencode(tree) + b"/" + ODD
        pcopy.copy(odd, os.fsencode(area) + b"/\xff")
        pcopy.copy(os.fsdecode(odd), area / "second")
        assert Path(os.fsdecode(os.fsencode(area) + b"/\xff")).read_bytes() == b"name"
        assert (area / "second").read_bytes() == b"name"

    def test_options_reach_the_program(self, area: Path, tree: Path) -> None:
        options: dict[str, Any] = {"exclude": ["*.tmp", b"\xff*"], "preserve": ["mode"], "checkpoint_interval": 7}
        options |= {"bwlimit": "1G", "chunk_size": 1 << 20, "in_flight": "auto", "newer_than": None, "delete": False}
        words = functions.copy.request(("a", b"b"), dict(options)).words
        expected = [b"--exclude=*.tmp", b"--exclude=\xff*", b"--preserve=mode", b"--checkpoint-interval=7"]
        expected += [b"--bwlimit=1G", b"--chunk-size=1048576", b"--in-flight=auto", b"--", b"a", b"b"]
        assert list(words[-len(expected) :]) == expected
        pcopy.copy(tree, area / "copy", **options)
        assert not (area / "copy/inner/file.tmp").exists()
        assert ODD not in os.listdir(os.fsencode(area / "copy"))

    def test_order_of_filters_is_that_of_the_keywords(self, area: Path, tree: Path) -> None:
        pcopy.copy(tree, area / "all", exclude="*.tmp", include="file.tmp")
        pcopy.copy(tree, area / "fewer", include="file.tmp", exclude="*.tmp")
        assert (area / "all/inner/file.tmp").exists()
        assert not (area / "fewer/inner/file.tmp").exists()

    def test_times_of_each_kind(self, area: Path, tree: Path) -> None:
        for when in (timedelta(days=1), 86400.0, "1d", date(2002, 1, 1), datetime(2002, 1, 1, 12)):
            pcopy.copy(tree, area / "copy", older_than=when, no_target_directory=True, dry_run=True)
            result = pcopy.copy(tree / "inner", area / f"copy {when}", older_than=when)
            assert result.files == 1, when  # of the year 2001

    @pytest.mark.parametrize(
        ("when", "word"),
        [
            (timedelta(hours=1), b"3600s"),
            (1.5, b"1.5s"),
            (0.001, b"0.001s"),
            (60, b"60s"),
            ("7d", b"7d"),
            (date(2002, 1, 2), b"2002-01-02"),
            (datetime(2002, 1, 2, 3, 4), b"2002-01-02T03:04:00"),
        ],
    )
    def test_words_of_times(self, when: Any, word: bytes) -> None:
        words = functions.copy.request(("a", "b"), {"newer_than": when}).words
        assert [each for each in words if each.startswith(b"--newer")] == [b"--newer-than=" + word]

    def test_dry_run_changes_nothing(self, area: Path, tree: Path) -> None:
        result = pcopy.copy(tree, area / "copy", dry_run=True)
        assert result.dry_run
        assert result.fits
        assert result.actions is not None
        assert result.actions["copy"] == len(find(tree))
        assert not (area / "copy").exists()

    def test_list_of_paths(self, area: Path, tree: Path) -> None:
        listed = [b"inner/file", ODD]
        pcopy.copy(tree, area / "copy", from_=listed, no_target_directory=True)
        assert find(area / "copy") == {
            os.fsencode(area / "copy") + end for end in (b"", b"/inner", b"/inner/file", b"/" + ODD)
        }
        (area / "list").write_bytes(b"inner/file\0" + ODD + b"\0")
        again = pcopy.copy(tree, area / "copy", from_=area / "list", null=True, existing="changed")
        assert again.failed == 0

    def test_sync_makes_the_trees_equal(self, area: Path, tree: Path) -> None:
        pcopy.copy(tree, area / "copy")
        (area / "copy/extra").touch()
        (tree / "inner/file.tmp").write_bytes(b"other")
        result = pcopy.sync(tree, area / "copy")
        assert (result.deleted, result.failed) == (1, 0)
        assert differences(tree, area / "copy") == []


class TestComparisons:
    def test_signature(self, area: Path, tree: Path) -> None:
        signed = pcopy.sign(tree, area / "signature", manifest=area / "manifest")
        assert signed.signature is not None
        assert signed.signature in (area / "signature").read_text()
        assert signed.same is None
        assert (signed.changed, signed.missing, signed.extra, signed.found) == (None, None, None, None)
        pcopy.copy(tree, area / "copy")
        equal = pcopy.verify(area / "copy", area / "signature")
        assert (equal.same, equal.changed, equal.missing, equal.extra) == (True, None, None, None)
        equal = pcopy.verify(area / "copy", manifest=area / "manifest")
        assert (equal.same, equal.changed, equal.missing, equal.extra) == (True, 0, 0, 0)
        (area / "copy/inner/file.tmp").write_bytes(b"y" * 5000)
        os.unlink(os.fsencode(area / "copy") + b"/" + ODD)
        with pytest.raises(pcopy.Different) as different:
            pcopy.verify(area / "copy", area / "signature")
        result = different.value.result
        assert result.expected == signed.signature != result.signature
        assert (result.same, result.changed, result.missing, result.extra) == (False, None, None, None)
        assert str(different.value) == f"{area}/copy: differs from the signature in {area}/signature"
        with pytest.raises(pcopy.ItemsFailed) as failed:
            pcopy.verify(area / "copy", manifest=area / "manifest")
        found = {(each.path, each.difference) for each in failed.value.result.differences}
        assert found == {(b"inner/file.tmp", "changed"), (ODD, "missing")}
        result = failed.value.result
        assert (result.same, result.changed, result.missing, result.extra) == (False, 1, 1, 0)
        assert failed.value.status == 1
        assert str(failed.value) == f"{area}/copy: 2 items differ from the manifest {area}/manifest"
        (area / "copy/inner/file.tmp").write_bytes(b"x" * 5000)
        with pytest.raises(pcopy.Different, match="copy: 1 item differs from the manifest "):
            pcopy.verify(area / "copy", manifest=area / "manifest")

    def test_comparison_returns_differences(self, area: Path, tree: Path) -> None:
        pcopy.copy(tree, area / "copy")
        assert pcopy.compare(tree, area / "copy").same is True
        (area / "copy/inner/file.tmp").write_bytes(b"x")
        result = pcopy.compare(tree, area / "copy")
        assert (result.same, result.changed, result.exit_status) == (False, 1, 1)
        assert [each.path for each in result.differences] == [b"inner/file.tmp"]
        by_size = pcopy.compare(tree, area / "copy", compare=["size"])
        assert [(each.path, each.properties) for each in by_size.differences] == [(b"inner/file.tmp", ("size",))]
        assert len(by_size.differences) == by_size.differ == 1

    def test_what_cannot_be_read_fails(self, area: Path, tree: Path) -> None:
        with pytest.raises(pcopy.Refused):
            pcopy.compare(tree, area / "missing")

    def test_either_signature_or_manifest(self, area: Path) -> None:
        with pytest.raises(pcopy.InvalidOption, match="either signature or manifest"):
            pcopy.verify(area)
        with pytest.raises(pcopy.InvalidOption, match="either signature or manifest"):
            pcopy.verify(area, area, manifest=area)


class TestTrees:
    def test_remove(self, area: Path, tree: Path) -> None:
        count = len(find(tree))
        assert pcopy.remove(tree, dry_run=True).removed == count
        result = pcopy.remove([tree], ranks=1)
        assert (result.removed, result.found) == (count, count)
        assert not tree.exists()
        with pytest.raises(pcopy.ItemsFailed) as failed:
            pcopy.remove(tree)
        assert [(each.path, each.errno) for each in failed.value] == [(os.fsencode(tree), errno.ENOENT)]
        assert pcopy.remove(tree, force=True).removed == 0

    def test_remove_a_list(self, area: Path, tree: Path) -> None:
        result = pcopy.remove(tree, from_=[ODD, "inner/file"])
        assert result.removed == 2
        assert not (tree / "inner/file").exists()

    def test_change_modes(self, area: Path, tree: Path) -> None:
        result = pcopy.change_modes(tree, "u=rwX,go=")
        assert result.changed > 0
        assert stat.S_IMODE((tree / "inner/file").stat().st_mode) == 0o600
        pcopy.change_modes([tree / "inner/file", tree / "inner/deep"], 0o640)
        assert stat.S_IMODE((tree / "inner/file").stat().st_mode) == 0o640
        assert pcopy.change_modes(tree / "inner/file", 0o640).unchanged == 1

    def test_walk_finds_what_find_finds(self, tree: Path) -> None:
        entries = {entry.path: entry for entry in pcopy.walk(tree)}
        assert entries.keys() == find(tree)
        for path, entry in entries.items():
            status = os.lstat(path)
            assert (entry.size, entry.mode, entry.uid, entry.gid, entry.links, entry.inode, entry.device) == (
                *(status.st_size, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_nlink),
                *(status.st_ino, status.st_dev),
            )
            assert (entry.mtime_ns, entry.ctime_ns) == (status.st_mtime_ns, status.st_ctime_ns)
            assert entry.allocated == status.st_blocks * 512
        types = {"file": 5, "directory": 3, "symlink": 1, "fifo": 1}
        assert {name: sum(entry.type == name for entry in entries.values()) for name in types} == types

    def test_walk_by_expression_and_fields(self, tree: Path) -> None:
        found = list(pcopy.walk([tree], ["-type", "f", "-size", "+100k"], fields=["size"]))
        assert [(entry.path, entry.size) for entry in found] == [(os.fsencode(tree / "inner/deep/large"), 300_000)]
        with pytest.raises(AttributeError, match="'mode' is not among the fields"):
            _ = found[0].mode
        for name, advice in {
            "name": r"; use os\.path\.basename\(entry\.path\)",
            "is_dir": "; use entry.type == 'directory'",
            "nothing": "",
        }.items():
            with pytest.raises(AttributeError, match=f"^'Entry' object has no attribute '{name}'{advice}$"):
                getattr(found[0], name)

    def test_entry_is_a_path(self, area: Path, tree: Path) -> None:
        by_path = {entry.path: entry for entry in pcopy.walk(tree)}
        odd = os.fsencode(tree) + b"/\xff\xfe\n"
        assert os.fspath(by_path[odd]) == odd
        with open(by_path[odd], "rb") as file:
            assert file.read() == b"name"
        assert os.path.relpath(by_path[odd], os.fsencode(tree)) == b"\xff\xfe\n"
        pcopy.copy(by_path[odd], area / "copy")
        assert (area / "copy").read_bytes() == b"name"
        pcopy.remove([by_path[odd], by_path[os.fsencode(tree / "link")]])
        assert not os.path.lexists(odd)
        assert not os.path.lexists(tree / "link")
        sizes = [entry.size for entry in pcopy.walk(tree, ["-type", "f"], sort="-size")]
        assert sizes == sorted(sizes, reverse=True)

    def test_walk_of_names_that_look_like_expressions(self, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(area)
        for name in ("-name", "(", "!"):
            (area / name).mkdir()
        assert [entry.path for entry in pcopy.walk(["-name", "(", "!"], sort="path")] == [b"./!", b"./(", b"./-name"]

    def test_archives(self, area: Path, tree: Path) -> None:
        result = pcopy.archive(tree.name, area / "made.tar", directory=area)
        with tarfile.open(area / "made.tar", errors="surrogateescape") as opened:
            names = {os.fsencode(member.name) for member in opened}
        assert names == {os.path.relpath(path, os.fsencode(area)) for path in find(tree)}
        assert result.found == len(names)
        (area / "out").mkdir()
        unpacked = pcopy.extract(area / "made.tar", area / "out")
        assert unpacked.found == len(names)
        assert differences(tree, area / "out/tree") == []
        (area / "part").mkdir()
        pcopy.extract(area / "made.tar", area / "part", "tree/inner/deep")
        assert [path.name for path in (area / "part/tree/inner/deep").iterdir()] == ["large"]

    def test_layouts_are_for_lustre(self, tree: Path) -> None:
        with pytest.raises(pcopy.Refused, match="is not on Lustre"):
            pcopy.restripe(tree)


class TestErrors:
    def test_refusal_changes_nothing(self, area: Path) -> None:
        before = snapshot(area)
        with pytest.raises(pcopy.Refused, match="missing: does not exist") as refused:
            pcopy.copy(area / "missing", area / "copy")
        assert (refused.value.status, refused.value.job, refused.value.result) == (2, None, None)
        with pytest.raises(pcopy.Refused, match=r"^bwlimit: 1X: not a size"):
            pcopy.copy(area, area / "copy", bwlimit="1X")
        assert snapshot(area) == before

    def test_failed_items(self, area: Path, tree: Path) -> None:
        obstacle = os.fsencode(area / "copy") + b"/" + ODD
        os.makedirs(obstacle + b"/full/of")
        with pytest.raises(pcopy.ItemsFailed) as failed:
            pcopy.copy(tree, area / "copy", no_target_directory=True)
        (item,) = failed.value
        assert (item.path, item.errno) == (obstacle, 39)
        assert (failed.value.filename, failed.value.errno, failed.value.status) == (obstacle, 39, 1)
        assert failed.value.result.failed == 1
        assert item.as_os_error().errno == 39
        (unfinished,) = pcopy.jobs()
        assert unfinished.job == failed.value.job
        assert (unfinished.state, unfinished.failed) == ("failed items", 1)
        assert unfinished.directory == os.fsencode(area / "state/pcopy" / unfinished.job)
        os.removedirs(obstacle + b"/full/of")
        os.makedirs(area / "copy", exist_ok=True)
        result = pcopy.resume(failed.value.job)
        assert result.failed == 0
        assert differences(tree, area / "copy") == []
        assert pcopy.jobs() == []

    def test_many_failures_are_not_kept_in_memory(self, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(results, "_MOST_LINES_IN_MEMORY", 3)
        (area / "source").mkdir()
        for number in range(150):
            (area / f"source/{number}").touch()
            (area / f"copy/{number}/full").mkdir(parents=True)
        with pytest.raises(pcopy.ItemsFailed) as failed:
            pcopy.copy(area / "source", area / "copy", no_target_directory=True)
        names = {os.fsencode(area / f"copy/{number}") for number in range(150)}
        assert [{each.path for each in failed.value} for _ in range(2)] == [names, names]
        assert len(failed.value.failures) == 150
        assert len(failed.value.failures._lines) == 3  # type: ignore[attr-defined]

    def test_discarded_job(self, area: Path, tree: Path) -> None:
        for number in range(3):
            os.makedirs(os.fsencode(area / f"copy{number}") + b"/" + ODD + b"/full")
            with pytest.raises(pcopy.ItemsFailed):
                pcopy.copy(tree, area / f"copy{number}", no_target_directory=True)
        first, second, third = pcopy.jobs()
        pcopy.discard(first)
        pcopy.discard([second.job])
        assert [job.job for job in pcopy.jobs()] == [third.job]
        pcopy.discard(older_than=timedelta(days=1))
        assert len(pcopy.jobs()) == 1
        pcopy.discard(older_than=0.001)
        assert pcopy.jobs() == []
        with pytest.raises(pcopy.Refused):
            pcopy.discard("abcdef0123")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ({"exsting": "newer"}, "copy() has no option 'exsting'; the nearest is 'existing'"),
            ({"json": True}, "copy() has no option 'json': the function reads the output, and returns objects"),
            ({"stripe_count": 3}, "copy() has no option 'stripe_count'; the nearest is 'stripe_table'"),
            ({"properties": 1, "ranks": 1}, "copy() has no option 'properties'"),
            ({"existing": "old"}, "copy(existing='old'): not one of replace, changed, newer, skip, fail"),
            ({"ranks": "2"}, "copy(ranks='2'): not a whole number"),
            ({"ranks": True}, "copy(ranks=True): not a whole number"),
            ({"bwlimit": 1.5}, "copy(bwlimit=1.5): not a whole number of bytes"),
            ({"bwlimit": []}, "copy(bwlimit=[]): not a number of bytes, or text such as '1GiB'"),
            ({"delete": "yes"}, "copy(delete='yes'): not True or False"),
            ({"dry_run": "none"}, "copy(dry_run='none'): not True, False or one of changes, all"),
            ({"checkpoint_interval": "1m"}, "copy(checkpoint_interval='1m'): not a number of seconds or a timedelta"),
            ({"exclude": [1]}, "copy(exclude=[1]): 1 is not text; write '1'"),
            ({"exclude": 1}, "copy(exclude=1): not text (str or bytes) or a sequence of texts"),
            ({"exclude": {"a"}}, "copy(exclude={'a'}): not text (str or bytes) or a sequence of texts: a set has no"),
            (
                {"exclude": {"a": 1}},
                "copy(exclude={'a': 1}): not text (str or bytes) or a sequence of texts: a mapping",
            ),
            ({"preserve": {"mode": 1}}, "copy(preserve={'mode': 1}): not a sequence of words (str): a mapping"),
            ({"from_": {"a": 1}}, "copy(from_={'a': 1}): not a path (str, bytes or os.PathLike) or a sequence of"),
            (
                {"from_": io.BytesIO()},
                "copy(from_=BytesIO(...)): not a path (str, bytes or os.PathLike) or a sequence"
                " of paths: a file object; give the name of a file, or its lines",
            ),
            ({"report": ["a", 5]}, "copy(report=['a', 5]): 5 is not a path (str, bytes or os.PathLike)"),
            ({"launcher": ["mpiexec", "-n", 2]}, "copy(launcher=['mpiexec', '-n', 2]): 2 is not text; write '2'"),
            ({"launcher": ["mpiexec", None]}, "copy(launcher=['mpiexec', None]): None is not text"),
            ({"launcher": {"mpiexec"}}, "copy(launcher={'mpiexec'}): not a sequence of words: a set has no order"),
            ({"launcher": "mpiexec '-n"}, """copy(launcher="mpiexec '-n"): not a sequence of words"""),
            ({"qqq": 1, "n": 1}, "copy() has no option 'qqq'; no option 'n'; use ranks"),
            ({"preserve": [b"mode"]}, "copy(preserve=[b'mode']): not a sequence of words (str)"),
            ({"signature": 5}, "copy(signature=5): not a path (str, bytes or os.PathLike)"),
            ({"report": 5}, "copy(report=5): not a path (str, bytes or os.PathLike) or a sequence of paths"),
            ({"from_": 5}, "copy(from_=5): not a path (str, bytes or os.PathLike) or a sequence of paths"),
            (
                {"newer_than": b"7d"},
                "copy(newer_than=b'7d'): not an age (seconds, a timedelta, or",
            ),
            ({"in_flight": "many"}, "copy(in_flight='many'): not a whole number or 'auto'"),
            (
                {"launcher": "mpiexec -n 2"},
                "copy(launcher='mpiexec -n 2'): not a sequence of words; write ['mpiexec', '-n', '2']",
            ),
            ({"progress": 5}, "copy(progress=5): not a function, to be called with each Progress"),
        ],
    )
    def test_wrong_options_start_nothing(
        self, area: Path, monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], message: str
    ) -> None:
        monkeypatch.setattr(sys, "executable", "/nonexistent")
        with pytest.raises(TypeError) as refused:
            pcopy.copy(area, area / "copy", **words)
        assert isinstance(refused.value, pcopy.Refused)
        assert str(refused.value).startswith(message)

    def test_wrong_operands(self, area: Path) -> None:
        with pytest.raises(TypeError, match="destination"):
            pcopy.copy(area)  # type: ignore[call-arg]
        with pytest.raises(
            pcopy.InvalidOption,
            match=r"^copy\(source=5\): not a path \(str, bytes or os.PathLike\) or a sequence of paths$",
        ):
            pcopy.copy(5, area)  # type: ignore[arg-type]
        with pytest.raises(pcopy.InvalidOption, match=r"mode=1\.5"):
            pcopy.change_modes(area, 1.5)  # type: ignore[arg-type]
        with pytest.raises(pcopy.InvalidOption, match="not a sequence of words"):
            pcopy.walk(area, "-name x")
        with pytest.raises(
            pcopy.InvalidOption, match=r"^walk\(expression=\['-maxdepth', 1\]\): 1 is not text; write '1'$"
        ):
            pcopy.walk(area, ["-maxdepth", 1])  # type: ignore[list-item]
        with open(area / "file", "w") as file, pytest.raises(pcopy.InvalidOption, match="a file object; give the name"):
            pcopy.copy(file, area)  # type: ignore[arg-type]
        with pytest.raises(pcopy.InvalidOption, match="that can be started"):
            pcopy.start(pcopy.walk, area)

    def test_program_that_cannot_be_started(self, area: Path) -> None:
        with pytest.raises(FileNotFoundError, match="no-such-launcher"):
            pcopy.copy(area, area / "copy", launcher=["no-such-launcher"])


RUNS: dict[str, tuple[str, tuple[str, ...], type[results.Result]]] = {
    "copy": ("pcopy", ("tree", "copy"), results.CopyResult),
    "dry run": ("pcopy", ("--dry-run", "tree", "copy"), results.CopyResult),
    "psync": ("psync", ("-T", "tree", "copy"), results.CopyResult),
    "compare": ("pverify", ("tree", "tree"), results.CompareResult),
    "properties": ("pverify", ("--compare", "all", "tree", "tree"), results.CompareResult),
    "sign": ("pverify", ("--create", "signature", "tree"), results.CompareResult),
    "remove": ("prm", ("--yes", "tree"), results.RemoveResult),
    "change": ("pchmod", ("u+x", "tree"), results.ChangeResult),
    "archive": ("ptar", ("-c", "-f", "tar", "tree"), results.ArchiveResult),
    "extract": ("ptar", ("-x", "-f", "../some.tar"), results.ExtractResult),
}


@pytest.mark.parametrize("name", RUNS)
def test_results_have_the_keys_that_programs_print(area: Path, tree: Path, name: str) -> None:
    subprocess.run(["tar", "-cf", area.parent / "some.tar", "-C", area, "tree"], check=True)
    program, words, kind = RUNS[name]
    run = run_pcopy("--json", *words, program=program, cwd=area)
    assert run.returncode == 0, show(run)
    printed = json.loads(run.stdout.splitlines()[-1])
    more = {"differences": ()} if kind is results.CompareResult else {}
    result = kind.from_json(printed, **more)
    assert dict(result.other) == {}
    assert {key: getattr(result, key) for key in printed} == printed
    text = "".join(base.__doc__ or "" for base in kind.__mro__ if base is not object)
    for key in printed:
        assert f"``{key}``" in text, key


def test_results_keep_keys_that_they_do_not_know() -> None:
    difference = results.Difference.from_json({"difference": "extra", "path": "a", "path_b64": "YQ=="})
    assert difference == results.Difference(b"a", "extra")
    values = {**dict.fromkeys(results.RemoveResult.__dataclass_fields__, 0), "new": [1]}
    del values["other"]
    result = results.RemoveResult.from_json(values)
    assert result.other == {"new": [1]}
    with pytest.raises(AttributeError):
        result.removed = 1  # type: ignore[misc]
