"""Opening files named on the command line: a table of situations, each tested as root and as an ordinary user."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pcopy.fsio import named_file
from pcopy.fsio.named_file import (
    UntrustedFileError,
    check_is_replaceable_file,
    open_named_file_to_read,
    open_named_file_to_write,
    open_parent_directory,
)
from tests.support.users import NOBODY, as_user, is_root, require_root

STRANGER = 65531
USERS = (0, NOBODY)


@pytest.fixture
def area(area: Path) -> Iterator[Path]:
    """A directory that all users may write to, like the shared directory of a project."""
    os.chmod(area, 0o777)
    yield area
    named_file.set_symbolic_link_trust(False)


class Case(NamedTuple):
    """A function that creates the situation below a directory for a caller; the errnos of reading and of writing (0 for
    success), and words of the error message.
    """

    made: Callable[[Path, int], object]
    reads: int
    writes: int
    words: str = ""


def own(path: Path, uid: int, contents: str = "abc", mode: int = 0o600) -> Path:
    path.write_text(contents)
    os.chmod(path, mode)
    os.chown(path, uid, -1)
    return path


def link(path: Path, target: str, uid: int) -> None:
    path.symlink_to(target)
    os.chown(path, uid, -1, follow_symlinks=False)


def fifo(path: Path, uid: int, mode: int = 0o600) -> None:
    os.mkfifo(path)
    os.chmod(path, mode)
    os.chown(path, uid, -1)


def through(uid_of_link: Callable[[int], int]) -> Callable[[Path, int], None]:
    def made(area: Path, caller: int) -> None:
        (area / "real").mkdir()
        os.chmod(area / "real", 0o777)
        own(area / "real/file", caller)
        (area / "via").mkdir()
        link(area / "via/step", "../real", uid_of_link(caller))
        (area / "file").symlink_to("via/step/file")
        os.chown(area / "file", caller, -1, follow_symlinks=False)

    return made


def last(uid_of_link: Callable[[int], int]) -> Callable[[Path, int], None]:
    def made(area: Path, caller: int) -> None:
        own(area / "target", caller)
        link(area / "file", "target", uid_of_link(caller))

    return made


CASES = {
    "own file": Case(lambda area, caller: own(area / "file", caller), 0, 0),
    "root's file": Case(lambda area, caller: os.chown(own(area / "file", 0, mode=0o664), 0, NOBODY), 0, 0),
    "own link": Case(last(lambda caller: caller), 0, 0),
    "root's link": Case(last(lambda caller: 0), 0, 0),
    "stranger's link": Case(last(lambda caller: STRANGER), errno.EPERM, errno.EPERM, "to target belongs to user 65531"),
    "own link in a directory": Case(through(lambda caller: caller), 0, 0),
    "stranger's link in a directory": Case(
        through(lambda caller: STRANGER), errno.EPERM, errno.EPERM, "to ../real belongs to user 65531"
    ),
    "stranger's file": Case(
        lambda area, caller: own(area / "file", STRANGER, mode=0o644), 0, errno.EPERM, "belongs to user 65531"
    ),
    "stranger's open file": Case(
        lambda area, caller: own(area / "file", STRANGER, mode=0o666), 0, errno.EPERM, "belongs to user 65531"
    ),
    "own file that all may write": Case(
        lambda area, caller: own(area / "file", caller, mode=0o666), 0, errno.EPERM, "mode 0666"
    ),
    "own file that the group may write": Case(lambda area, caller: own(area / "file", caller, mode=0o664), 0, 0),
    "stranger's FIFO": Case(lambda area, caller: fifo(area / "file", STRANGER, 0o666), -1, errno.EPERM, "belongs to"),
    "directory": Case(lambda area, caller: (area / "file").mkdir(), errno.EISDIR, errno.EISDIR, "Is a directory"),
    "nothing": Case(lambda area, caller: None, errno.ENOENT, 0),
    "missing directory": Case(
        lambda area, caller: link(area / "file", "no/file", caller), errno.ENOENT, errno.ENOENT, "No such file"
    ),
    "links in a circle": Case(
        lambda area, caller: link(area / "file", "file", caller), errno.ELOOP, errno.ELOOP, "Too many levels"
    ),
}


def refused_with(action: Callable[[], named_file.OpenedFile]) -> tuple[int, str]:
    try:
        os.close(action().descriptor)
    except OSError as error:
        return error.errno or 0, error.strerror or ""
    return 0, ""


@pytest.mark.parametrize("caller", USERS, ids=["root", "user"])
@pytest.mark.parametrize("case", CASES)
def test_opening_follows_the_table_of_situations(area: Path, case: str, caller: int) -> None:
    require_root("make files of other users")
    made, reads, writes, words = CASES[case]
    made(area, caller)
    path = os.fsencode(area / "file")

    def tried() -> None:
        for expected, action in ((reads, open_named_file_to_read), (writes, open_named_file_to_write)):
            if expected < 0:  # opening it would block
                continue
            number, text = refused_with(lambda action=action: action(path))  # type: ignore[misc]
            assert number == expected, (action.__name__, number, text)
            assert not expected or action is not open_named_file_to_write or words in text, text
        held = open_parent_directory(path)
        os.close(held.descriptor)

    as_user(tried, caller) if caller else tried()
    contents = {each: (area / each).read_text() for each in ("target", "real/file") if (area / each).exists()}
    assert set(contents.values()) <= {"abc"}


def test_links_of_other_users_are_followed_on_request(area: Path) -> None:
    require_root("make links of other users")
    through(lambda caller: STRANGER)(area, 0)
    named_file.set_symbolic_link_trust(True)
    assert refused_with(lambda: open_named_file_to_read(os.fsencode(area / "file"))) == (0, "")
    assert open_named_file_to_read(os.fsencode(area / "file")).path == os.fsencode((area / "real/file").resolve())


def test_links_to_the_directory_of_an_output_follow_the_same_rule(area: Path) -> None:
    """This is for outputs that are replaced as a whole."""
    require_root("make links of other users")
    (area / "real").mkdir()
    link(area / "step", "real", STRANGER)
    with pytest.raises(UntrustedFileError, match="belongs to user 65531"):
        open_parent_directory(os.fsencode(area / "step/file"))


def test_only_regular_files_are_replaced(area: Path) -> None:
    (area / "file").touch()
    os.mkfifo(area / "fifo")
    (area / "link").symlink_to("file")
    held = open_parent_directory(os.fsencode(area / "file"))
    check_is_replaceable_file(held.descriptor, b"file")
    check_is_replaceable_file(held.descriptor, b"absent")
    for name in (b"fifo", b"link"):
        with pytest.raises(UntrustedFileError):
            check_is_replaceable_file(held.descriptor, name)
    os.close(held.descriptor)


def test_link_that_is_swapped_repeatedly_never_leads_to_roots_file(area: Path) -> None:
    """The name alternates between a stranger's link to root's file, a link to /dev/null, and a file of the stranger."""
    require_root("be attacked")
    secret = own(area / "secret", 0, "root's")
    os.chmod(area, 0o777)
    names = []
    for number, target in enumerate((str(secret), "/dev/null")):
        link(area / f"way{number}", target, STRANGER)
        names.append(area / f"way{number}")
    own(area / "own", STRANGER, mode=0o666)
    ended = threading.Event()

    def flip() -> None:
        while not ended.is_set():
            for each in (*names, area / "own"):
                spare = area / "spare"
                os.link(each, spare, follow_symlinks=False)
                os.rename(spare, area / "file")
                spare.unlink(missing_ok=True)  # both names were links to one item

    os.link(names[0], area / "file", follow_symlinks=False)
    flipping = threading.Thread(target=flip)
    flipping.start()
    try:
        for _ in range(300):
            number, _ = refused_with(lambda: open_named_file_to_write(os.fsencode(area / "file")))
            assert number in (errno.EPERM, errno.ESTALE)
            try:
                read = open_named_file_to_read(os.fsencode(area / "file"))
            except UntrustedFileError:
                continue
            assert os.read(read.descriptor, 99) == b"abc"
            os.close(read.descriptor)
    finally:
        ended.set()
        flipping.join()
    assert secret.read_text() == "root's"


def test_a_fifo_without_a_reader_is_refused(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named_file.FIFO_READER_TIMEOUT == 5
    monkeypatch.setattr(named_file, "FIFO_READER_TIMEOUT", 0.2)
    fifo(area / "file", os.geteuid())
    number, text = refused_with(lambda: open_named_file_to_write(os.fsencode(area / "file")))
    assert number == errno.ENXIO and "no program has opened this FIFO for reading" in text


def test_fifo_is_written_once_it_has_a_reader(area: Path) -> None:
    fifo(area / "file", os.geteuid())
    found: list[bytes] = []

    def read() -> None:
        time.sleep(0.2)
        found.append((area / "file").read_bytes())

    reading = threading.Thread(target=read)
    reading.start()
    opened = open_named_file_to_write(os.fsencode(area / "file"))
    assert os.get_blocking(opened.descriptor)
    os.write(opened.descriptor, b"line\n")
    os.close(opened.descriptor)
    reading.join()
    assert found == [b"line\n"]


def test_fifo_is_read_once_it_has_a_writer(area: Path) -> None:
    fifo(area / "file", os.geteuid())

    def write() -> None:
        time.sleep(0.2)
        (area / "file").write_bytes(b"listed\n")

    writing = threading.Thread(target=write)
    writing.start()
    opened = open_named_file_to_read(os.fsencode(area / "file"))
    assert os.get_blocking(opened.descriptor)
    with open(opened.descriptor, "rb") as file:
        assert file.read() == b"listed\n"
    writing.join()


@pytest.mark.parametrize("form", ["/dev/fd/%d", "/proc/self/fd/%d", "link"])
def test_inherited_descriptors_are_duplicated(area: Path, form: str) -> None:
    """They are not checked, because the process that started the program has opened them."""
    reader, writer = os.pipe()
    for number, action, other in (
        (reader, open_named_file_to_read, open_named_file_to_write),
        (writer, open_named_file_to_write, open_named_file_to_read),
    ):
        path = os.fsencode(area / f"link{number}")
        if form == "link":
            os.symlink(b"/dev/fd/%d" % number, path)
        else:
            path = os.fsencode(form % number)
        opened = action(path)
        assert opened.is_inherited and os.fstat(opened.descriptor).st_ino == os.fstat(number).st_ino
        os.close(opened.descriptor)
        with pytest.raises(UntrustedFileError, match="is not open for"):
            other(path)
    os.close(reader)
    os.close(writer)


def test_each_open_of_an_inherited_file_reads_from_the_same_offset(area: Path) -> None:
    """Duplicates share one offset. The second reader of a list must not find it empty."""
    number = os.open(own(area / "list", os.geteuid(), "skipped\nlisted\n"), os.O_RDONLY)
    os.read(number, len("skipped\n"))
    for _ in range(2):
        with open(open_named_file_to_read(b"/dev/fd/%d" % number).descriptor, "rb") as file:
            assert file.read() == b"listed\n"
    os.close(number)


def test_character_devices_are_accepted_and_block_devices_refused(area: Path) -> None:
    assert refused_with(lambda: open_named_file_to_write(b"/dev/null")) == (0, "")
    assert refused_with(lambda: open_named_file_to_read(b"/dev/null")) == (0, "")
    if is_root():
        os.mknod(area / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 255))
        for action in (open_named_file_to_read, open_named_file_to_write):
            assert "block device" in refused_with(lambda action=action: action(os.fsencode(area / "disk")))[1]  # type: ignore[misc]


def test_a_new_file_is_made_in_a_sticky_directory(area: Path) -> None:
    os.chmod(area, 0o1777)
    opened = open_named_file_to_write(os.fsencode(area / "new"))
    os.write(opened.descriptor, b"x")
    os.close(opened.descriptor)
    os.close(open_named_file_to_write(os.fsencode(area / "new")).descriptor)
    assert (area / "new").read_bytes() == b"x"


def test_fifo_is_refused_where_a_regular_file_is_required(area: Path) -> None:
    """The call does not wait for a writer."""
    fifo(area / "file", os.geteuid())
    with pytest.raises(UntrustedFileError, match="not a regular file"):
        open_named_file_to_read(os.fsencode(area / "file"), regular=True)


@pytest.mark.parametrize(
    "path", [b".", b"./", b"area/../area/./file", b"/", b"area//file", b"area/file/", b"area/..", b"", b"area/no/x"]
)
def test_paths_are_resolved_like_the_system_does(area: Path, monkeypatch: pytest.MonkeyPatch, path: bytes) -> None:
    monkeypatch.chdir(area.parent)
    (area / "file").touch()
    try:
        expected: object = (os.stat(path).st_ino, os.path.realpath(path))
    except OSError as error:
        expected = error.errno
    try:
        found = named_file.examine_path(path)
        assert found.status is not None
        seen: object = (found.status.st_ino, found.path)
    except OSError as error:
        seen = error.errno
    assert seen == expected
