"""Refused requests: the message has no advice for the command line, and errno and filename are those of the reason."""

from __future__ import annotations

import errno
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import pcopy
from tests.support.processes import PROMPT, wait_until

FOR_COMMAND_LINES = re.compile(
    r"(?<![\w-])--?[A-Za-z0]|/dev/fd|\b(?:SRC|DST|PATH|MODE|SIGNATURE|MANIFEST|MEMBER|ARCHIVE|DIR|FILE|JOB)\b"
)
"""Words of the command line."""
TESTS_OF_FIND = re.compile(r"unknown test -foo|^-(?:exec|delete|ls)\b|leave out -ls$")
"""What looks like these, and is none: tests of an expression."""

Case = tuple[Callable[[], object], type[pcopy.Error], int | None, str | None, str]
"""A call; the exception, its errno and filename (relative to the working directory), and a text in its message."""

CASES: dict[str, Case] = {
    # paths
    "copy: missing source": (lambda: pcopy.copy("no", "x"), pcopy.Refused, errno.ENOENT, "no", "source comes before"),
    "copy: link that leads nowhere": (
        lambda: pcopy.copy("dangling", "x", dereference=True),
        pcopy.Refused,
        errno.ENOENT,
        "dangling",
        "so dereference cannot follow the link",
    ),
    "copy: directory onto a file": (
        lambda: pcopy.copy("tree", "file"),
        pcopy.Refused,
        errno.ENOTDIR,
        "file",
        "name another destination",
    ),
    "copy: file onto a directory": (
        lambda: pcopy.copy("file", "tree/", no_target_directory=True),
        pcopy.Refused,
        errno.EISDIR,
        "tree/",
        "leave out no_target_directory",
    ),
    "copy: missing directory": (
        lambda: pcopy.copy("file", "no/x"),
        pcopy.Refused,
        errno.ENOENT,
        "no/x",
        "its directory no does not exist",
    ),
    "copy: several sources": (
        lambda: pcopy.copy(["file", "tree"], "new"),
        pcopy.Refused,
        errno.ENOENT,
        "new",
        "several sources need an existing directory as destination",
    ),
    "copy: onto itself": (lambda: pcopy.copy("file", "file"), pcopy.Refused, None, "file", "the same file"),
    "copy: into itself": (
        lambda: pcopy.copy("tree", "tree/sub"),
        pcopy.Refused,
        None,
        "tree/sub/tree",
        "name a destination outside",
    ),
    "sync: missing source": (lambda: pcopy.sync("no", "x"), pcopy.Refused, errno.ENOENT, "no", "does not exist"),
    "sync: empty source": (lambda: pcopy.sync("empty", "tree"), pcopy.Refused, None, "empty", "use delete_all=True"),
    "resume: no such job": (lambda: pcopy.resume("no"), pcopy.Refused, errno.ENOENT, "no", "pcopy.jobs() lists all"),
    "resume: no job there": (lambda: pcopy.resume("./tree"), pcopy.Refused, errno.ENOENT, "{}/tree", "no job is in"),
    "discard: no such job": (lambda: pcopy.discard("no"), pcopy.Error, None, None, "pcopy.jobs() lists all"),
    "verify: missing tree": (
        lambda: pcopy.verify("no", "tree.sig"),
        pcopy.Refused,
        errno.ENOENT,
        "no",
        "No such file",
    ),
    "verify: missing signature": (
        lambda: pcopy.verify("tree", "no.sig"),
        pcopy.Refused,
        errno.ENOENT,
        "no.sig",
        "No such file",
    ),
    "verify: wrong order": (
        lambda: pcopy.verify("tree.sig", "tree"),
        pcopy.InvalidOption,
        errno.EISDIR,
        "tree",
        "signature='tree'): a directory; the order is verify(path, signature)",
    ),
    "verify: wrong order of files": (
        lambda: pcopy.verify("tree.sig", "file"),
        pcopy.Refused,
        None,
        "tree.sig",
        "is a signature; use pcopy.verify('file', 'tree.sig')",
    ),
    "verify: manifest as signature": (
        lambda: pcopy.verify("tree", "tree.man"),
        pcopy.Refused,
        None,
        "tree.man",
        "is a manifest; compare with it by pcopy.verify('tree', manifest='tree.man')",
    ),
    "verify: no signature": (lambda: pcopy.verify("tree", "file"), pcopy.Refused, None, "file", "is no signature"),
    "compare: missing tree": (
        lambda: pcopy.compare("tree", "no"),
        pcopy.Refused,
        errno.ENOENT,
        "no",
        "No such file",
    ),
    "compare: signature": (
        lambda: pcopy.compare("tree", "tree.sig"),
        pcopy.Refused,
        None,
        "tree.sig",
        "use pcopy.verify('tree', 'tree.sig')",
    ),
    "sign: existing signature": (
        lambda: pcopy.sign("tree", "tree.sig"),
        pcopy.Refused,
        errno.EEXIST,
        "tree.sig",
        "force=True replaces it",
    ),
    "sign: existing file": (
        lambda: pcopy.sign("tree", "file"),
        pcopy.Refused,
        errno.EEXIST,
        "{}/file",
        "name another file, or remove it",
    ),
    "sign: directory": (
        lambda: pcopy.sign("empty", "tree"),
        pcopy.InvalidOption,
        errno.EISDIR,
        "tree",
        "sign(signature='tree'): a directory; the order is sign(path, signature)",
    ),
    "sign: missing directory": (
        lambda: pcopy.sign("tree", "no/x"),
        pcopy.Refused,
        errno.ENOENT,
        "{}/no/x",
        "does not exist",
    ),
    "remove: root": (lambda: pcopy.remove("/"), pcopy.Refused, None, "/", "is never removed"),
    "remove: missing list": (lambda: pcopy.remove("tree", from_="no"), pcopy.Refused, errno.ENOENT, "no", "from_"),
    "remove: nothing": (pcopy.remove, pcopy.InvalidOption, None, None, "give paths or from_"),
    "remove: missing item": (lambda: pcopy.remove("no"), pcopy.ItemsFailed, errno.ENOENT, "no", "1 failed"),
    "change_modes: wrong order": (
        lambda: pcopy.change_modes("u+x", "tree"),
        pcopy.InvalidOption,
        None,
        None,
        "mode='tree'): not a mode; the order is change_modes(paths, mode)",
    ),
    "change_modes: no mode": (
        lambda: pcopy.change_modes("tree"),
        pcopy.InvalidOption,
        None,
        None,
        "give mode, or one of owner, group, acl_from, reference",
    ),
    "change_modes: not a mode": (
        lambda: pcopy.change_modes("tree", "u"),
        pcopy.Refused,
        None,
        None,
        "mode u: is not a mode",
    ),
    "change_modes: missing reference": (
        lambda: pcopy.change_modes("tree", reference="no"),
        pcopy.Refused,
        errno.ENOENT,
        "no",
        "reference no: No such file",
    ),
    "change_modes: two modes": (
        lambda: pcopy.change_modes("tree", "u+x", reference="file"),
        pcopy.Refused,
        None,
        None,
        "mode and reference both set the mode",
    ),
    "archive: missing source": (
        lambda: pcopy.archive("no", "x.tar"),
        pcopy.Refused,
        errno.ENOENT,
        "no",
        "No such file",
    ),
    "archive: directory": (lambda: pcopy.archive("tree", "empty"), pcopy.Refused, errno.EISDIR, "empty", "directory"),
    "archive: missing directory": (
        lambda: pcopy.archive("tree", "no/x.tar"),
        pcopy.Refused,
        errno.ENOENT,
        "no/x.tar",
        "the directory no does not exist",
    ),
    "archive: nothing": (
        lambda: pcopy.archive(None, "x.tar"),
        pcopy.InvalidOption,
        None,
        None,
        "give source or from_",
    ),
    "archive: source and list": (
        lambda: pcopy.archive("tree", "x.tar", from_=["file"]),
        pcopy.Refused,
        None,
        None,
        "from_ lists what is archived: leave out source",
    ),
    "extract: missing archive": (
        lambda: pcopy.extract("no.tar", "empty"),
        pcopy.Refused,
        errno.ENOENT,
        "no.tar",
        "No such file",
    ),
    "extract: missing destination": (
        lambda: pcopy.extract("tree.tar", "no"),
        pcopy.Refused,
        errno.ENOENT,
        "no",
        "destination needs an existing directory",
    ),
    "extract: file as destination": (
        lambda: pcopy.extract("tree.tar", "file"),
        pcopy.Refused,
        errno.ENOTDIR,
        "file",
        "is not a directory",
    ),
    "extract: members and list": (
        lambda: pcopy.extract("tree.tar", "empty", "tree", from_=["tree"]),
        pcopy.Refused,
        None,
        None,
        "leave out members",
    ),
    "walk: unknown test": (
        lambda: list(pcopy.walk("tree", ["-foo"])),
        pcopy.Refused,
        None,
        None,
        "unknown test -foo; see help(pcopy.walk)",
    ),
    "walk: command": (
        lambda: list(pcopy.walk("tree", ["-exec", "rm", "{}", ";"])),
        pcopy.Refused,
        None,
        None,
        "-exec: walk() runs no commands; use the entries in a loop; see help(pcopy.walk)",
    ),
    "walk: removal": (
        lambda: list(pcopy.walk("tree", ["-delete"])),
        pcopy.Refused,
        None,
        None,
        "-delete: walk() changes nothing; give the paths to pcopy.remove(from_=[...]); see help(pcopy.walk)",
    ),
    "walk: lines": (
        lambda: list(pcopy.walk("tree", ["-ls"])),
        pcopy.Refused,
        None,
        None,
        "-ls prints lines for people: leave out -ls",
    ),
    "copy: list that starts elsewhere": (
        lambda: pcopy.copy("tree", "x", from_=["tree/file"]),
        pcopy.Refused,
        None,
        None,
        "from_: line 1: tree/file is not in tree; write 'file'",
    ),
    "copy: pattern": (
        lambda: pcopy.copy("tre*", "x"),
        pcopy.Refused,
        errno.ENOENT,
        "tre*",
        "exists: patterns are not expanded; use glob.glob()",
    ),
    "copy: pattern of nothing": (
        lambda: pcopy.copy("*.h5", "x"),
        pcopy.Refused,
        errno.ENOENT,
        "*.h5",
        "*.h5: does not exist; patterns are not expanded; use glob.glob()",
    ),
    "copy: home": (
        lambda: pcopy.copy("~/no", "x"),
        pcopy.Refused,
        errno.ENOENT,
        "~/no",
        "~/no: does not exist; ~ is not expanded; use os.path.expanduser()",
    ),
    "copy: variable": (
        lambda: pcopy.copy("$NOTHING/no", "x"),
        pcopy.Refused,
        errno.ENOENT,
        "$NOTHING/no",
        "$NOTHING/no: does not exist; $ is not expanded; use os.path.expandvars()",
    ),
    "archive: another format": (
        lambda: pcopy.archive("tree", "x.zip"),
        pcopy.Refused,
        None,
        "x.zip",
        "x.zip: archive() writes tar files: name it x.tar, x.tar.gz or x.tar.zst",
    ),
    "walk: missing patterns": (
        lambda: list(pcopy.walk("tree", exclude_from="no")),
        pcopy.Refused,
        errno.ENOENT,
        "no",
        "exclude_from: no: ",
    ),
    "walk: missing tree": (lambda: list(pcopy.walk("no")), pcopy.ItemsFailed, errno.ENOENT, "no", "No such file"),
    "restripe: not on Lustre": (lambda: pcopy.restripe("tree"), pcopy.Refused, None, "tree", "is not on Lustre"),
    "restripe: dry run": (
        lambda: pcopy.restripe("tree", dry_run=True),
        pcopy.Refused,
        None,
        None,
        "dry_run can only be given with stripe",
    ),
    # options
    "copy: size": (lambda: pcopy.copy("tree", "x", bwlimit="1X"), pcopy.Refused, None, None, "bwlimit: 1X: not a size"),
    "copy: number": (lambda: pcopy.copy("tree", "x", ranks=0), pcopy.Refused, None, None, "ranks: 0: not a whole"),
    "copy: option for another one": (
        lambda: pcopy.copy("tree", "x", max_delete=3),
        pcopy.Refused,
        None,
        None,
        "max_delete is for delete and mirror: give one of these, too; see help(pcopy.copy)",
    ),
    "copy: two options": (
        lambda: pcopy.copy("tree", "x", checksum=True, existing="skip"),
        pcopy.Refused,
        None,
        None,
        "checksum compares contents, existing='skip' does not: leave one out; see help(pcopy.copy)",
    ),
    "copy: option without a list": (
        lambda: pcopy.copy("tree", "x", null=True),
        pcopy.Refused,
        None,
        None,
        "null says how the paths in from_ end: give from_, too",
    ),
    "copy: mirror without slash": (
        lambda: pcopy.copy("tree", "empty", mirror=True),
        pcopy.Refused,
        None,
        "tree",
        "with mirror source needs a trailing slash, so that it is clear which directory becomes equal to source; "
        "add the slash, or use pcopy.sync()",
    ),
    "copy: mirror of several": (
        lambda: pcopy.copy(["tree/", "empty/"], "x", mirror=True),
        pcopy.Refused,
        None,
        None,
        "mirror takes one source",
    ),
    "copy: filters": (
        lambda: pcopy.copy("tree", "x", include="a"),
        pcopy.Refused,
        None,
        None,
        "to select only these: exclude='*' include='*/' include='a'",
    ),
    "copy: line of a list": (
        lambda: pcopy.copy("tree", "x", from_=["../x"]),
        pcopy.Refused,
        None,
        None,
        "from_: line 1: ../x does not lie in tree",
    ),
    "copy: empty list": (lambda: pcopy.copy("tree", "x", from_=[]), pcopy.Refused, None, None, "from_: lists nothing"),
    "copy: job in the tree": (
        lambda: pcopy.copy("tree", "x", checkpoint="tree/job"),
        pcopy.Refused,
        None,
        "{}/tree/job",
        "outside of source and destination (checkpoint)",
    ),
    "copy: configuration": (
        lambda: pcopy.copy("tree", "x", config="no.yaml"),
        pcopy.Refused,
        errno.ENOENT,
        "no.yaml",
        "config: no.yaml does not exist; check the name",
    ),
    "copy: report": (lambda: pcopy.copy("tree", "x", report="-"), pcopy.Refused, None, None, "report -: standard out"),
    "sync: backup": (
        lambda: pcopy.sync("tree", "empty", backup="../file"),
        pcopy.Refused,
        errno.ENOTDIR,
        "{}/file",
        "backup ../file: ",
    ),
    "compare: option for another one": (
        lambda: pcopy.compare("tree", "empty", modify_window=3),
        pcopy.Refused,
        None,
        None,
        "modify_window can only be given with compare: ",
    ),
    "archive: two compressions": (
        lambda: pcopy.archive("tree", "x.tar", gzip=True, zstd=True),
        pcopy.Refused,
        None,
        None,
        "zstd: not allowed with argument gzip",
    ),
    "archive: two options": (
        lambda: pcopy.archive("tree", "x.tar", resume=True, no_sync=True),
        pcopy.Refused,
        None,
        None,
        "resume continues from what is on stable storage; leave out no_sync",
    ),
    "extract: number": (
        lambda: pcopy.extract("tree.tar", "empty", strip_components=-1),
        pcopy.Refused,
        None,
        None,
        "strip_components: -1: not a whole number",
    ),
}


@pytest.fixture
def place(area: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with items for all cases."""
    monkeypatch.chdir(area)
    Path("tree/sub").mkdir(parents=True)
    Path("empty").mkdir()
    Path("file").write_bytes(b"contents")
    Path("tree/file").write_bytes(b"contents")
    Path("dangling").symlink_to("nowhere")
    pcopy.sign("tree", "tree.sig", manifest="tree.man")
    pcopy.archive("tree", "tree.tar")
    return area


def items(top: Path) -> list[tuple[str, int]]:
    """Return the items below ``top``, except recorded jobs and temporary files, with their times."""
    own = {top / "state", top / "tmp"}
    found = [path for path in top.rglob("*") if not own & {path, *path.parents}]
    return sorted((str(path), path.lstat().st_mtime_ns) for path in found)


@pytest.mark.parametrize("case", CASES)
def test_refusal(case: str, place: Path) -> None:
    call, kind, number, name, text = CASES[case]
    before = items(place)
    with pytest.raises(kind) as caught:
        call()
    message, path = str(caught.value), None if name is None else name.format(place)
    assert text in message
    assert FOR_COMMAND_LINES.findall(TESTS_OF_FIND.sub("", message)) == []
    assert (caught.value.errno, caught.value.filename) == (number, path and os.fsencode(path))
    assert path is None or path in message
    assert items(place) == before


def test_each_function_has_a_case() -> None:
    functions = {case.partition(":")[0] for case in CASES}
    assert functions == {
        *("copy", "sync", "resume", "discard", "verify", "compare", "sign", "remove", "change_modes", "archive"),
        *("extract", "walk", "restripe"),
    }


@pytest.mark.parametrize("name", ["SRC --force/DST", "--delete", "-x", "/dev/fd/99999/SRC", "a --max-delete=3 b"])
def test_paths_are_not_changed(name: str, place: Path) -> None:
    with pytest.raises(pcopy.Refused) as caught:
        pcopy.copy(name, "x")
    assert caught.value.filename == os.fsencode(name)
    assert str(caught.value).startswith(f"{name}: ")
    with pytest.raises(pcopy.Refused) as caught:
        pcopy.copy("file", f"{name}/x")
    assert f"its directory {name} does not exist" in str(caught.value)


def test_names_in_messages_are_escaped(place: Path) -> None:
    odd = b"\xff\n\x1b"
    with pytest.raises(pcopy.Refused, match=r"^\\xff\\n\\x1b: does not exist") as refused:
        pcopy.copy(odd, "x")
    assert refused.value.filename == odd
    with pytest.raises(pcopy.ItemsFailed, match=r"first one: \\xff\\n\\x1b: stat: No such file") as failed:
        pcopy.remove(odd)
    assert [item.path for item in failed.value] == [odd]


def test_refusal_of_a_walk_that_is_read_late(place: Path) -> None:
    """The program has ended before the first entry is requested."""
    walk = pcopy.walk("tree", ["-foo"])
    assert wait_until(walk._job.done, PROMPT)
    with pytest.raises(pcopy.Refused, match="unknown test -foo"):
        next(walk)
    with pytest.raises(StopIteration):
        next(walk)


def test_control_of_a_job_that_has_ended(place: Path) -> None:
    with pcopy.start(pcopy.copy, "tree", "x") as job:
        job.wait()
    with pytest.raises(pcopy.Refused) as caught:
        job.control(pause=True)
    assert FOR_COMMAND_LINES.findall(str(caught.value)) == []


def test_exceptions_keep_the_reason_when_pickled(place: Path) -> None:
    with pytest.raises(pcopy.Refused) as caught:
        pcopy.copy("no", "x")
    restored = pickle.loads(pickle.dumps(caught.value))
    assert (restored.errno, restored.filename, str(restored)) == (errno.ENOENT, b"no", str(caught.value))
