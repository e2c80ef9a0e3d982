"""``ptar -x`` creates items only below the target, also for members and existing links that lead elsewhere."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.archives import made_of, member, ptar
from tests.support.command import show
from tests.support.users import NOBODY, require_root

ZSTD = b"\x28\xb5\x2f\xfd"
"""The magic number of a frame (RFC 8878)."""

HOSTILE = {
    "dots": [member("../evil")],
    "dots within": [member("a/../../evil")],
    "absolute": [member("{outside}/evil")],
    "symlink, then file": [member("way", kind=tarfile.SYMTYPE, link="{outside}"), member("way/evil")],
    "symlink above, then directory": [
        *(
            member("d", kind=tarfile.DIRTYPE),
            member("d/way", kind=tarfile.SYMTYPE, link="{outside}"),
            member("d/way/e", kind=tarfile.DIRTYPE),
        ),
        member("d/way/e/evil"),
    ],
    "symlink, then file of its name": [
        member("canary", kind=tarfile.SYMTYPE, link="{outside}/canary"),
        member("canary"),
    ],
    "hard link to outside": [member("way", kind=tarfile.LNKTYPE, link="{outside}/canary"), member("way")],
    "hard link by dots": [member("way", kind=tarfile.LNKTYPE, link="../outside/canary")],
    "hard link by symlink": [
        member("s", kind=tarfile.SYMTYPE, link="{outside}"),
        member("way", kind=tarfile.LNKTYPE, link="s/canary"),
    ],
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("attack", HOSTILE)
def test_no_member_is_created_outside_the_target(attack: str, ranks: int, tmp_path: Path, place: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_bytes(b"canary")
    members = []
    for info, data in HOSTILE[attack]:
        new = tarfile.TarInfo(info.name.format(outside=outside))
        new.type, new.linkname = info.type, info.linkname.format(outside=outside)
        new.size = len(data)
        members.append((new, data))
    archive = made_of(tmp_path / "a.tar", [*members, member("good", data=b"good")])
    done = ptar("-xf", archive, "-C", place, ranks=ranks)
    assert os.listdir(outside) == ["canary"]
    assert (outside / "canary").read_bytes() == b"canary"
    assert (outside / "canary").stat().st_nlink == 1
    assert not (tmp_path / "evil").exists()
    assert (place / "good").read_bytes() == b"good"
    assert b"Traceback" not in done.stderr
    # These members are created below the target, or a later member replaces them.
    harmless = attack in ("absolute", "symlink, then file of its name", "hard link to outside")
    assert done.returncode == (0 if harmless else 1), show(done)


def test_planted_link_in_the_target_is_not_followed(tmp_path: Path, place: Path) -> None:
    (tmp_path / "outside").mkdir()
    (place / "way").symlink_to(tmp_path / "outside")
    archive = made_of(tmp_path / "a.tar", [member("way/evil")])
    done = ptar("-xf", archive, "-C", place)
    assert done.returncode == 1, show(done)
    assert b"a symbolic link has the name of the directory way" in done.stderr
    assert os.listdir(tmp_path / "outside") == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_failed_hard_link_names_its_target(ranks: int, tmp_path: Path, place: Path) -> None:
    """The target is not selected, or missing: GNU tar cannot create such a link either."""
    names = {"d/1": "other/file", "d/2": "missing/file"}
    links = [member(name, kind=tarfile.LNKTYPE, link=target) for name, target in names.items()]
    archive = made_of(tmp_path / "a.tar", [member("other/file"), *links, member("d/3")])
    (tmp_path / "theirs").mkdir()
    theirs = subprocess.run(["tar", "-xf", archive, "-C", tmp_path / "theirs", "d"], check=False, capture_output=True)
    assert theirs.returncode == 2
    assert os.listdir(tmp_path / "theirs/d") == ["3"]
    extracted = ptar("-xf", archive, "-C", place, "d", ranks=ranks)
    listed = ptar("-tf", archive, "d")
    for name, target in names.items():
        reason = f"is a hard link to {target}, and no selected member is a file of that name"
        whole = f"ptar: {place}/{name}: link: No such file or directory: {reason} (ENOENT)\n"
        assert whole in extracted.stderr.decode(), show(extracted)
        assert f"ptar: {archive}: {name}: {reason}\n" in listed.stderr.decode(), show(listed)
    assert (extracted.returncode, listed.returncode, os.listdir(place / "d")) == (1, 1, ["3"])


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_target_that_the_user_cannot_enter_is_refused(more: tuple[str, ...], area: Path) -> None:
    """GNU tar reports only this directory, too. A dry run must not list members that cannot be extracted."""
    require_root("makes a directory of another user")
    archive = made_of(area / "a.tar", [member("d/file"), member("other")])
    os.chmod(archive, 0o644)
    (area / "place").mkdir(mode=0o700)
    done = ptar("-xf", archive, "-C", area / "place", *more, user=NOBODY)
    wanted = f"ptar: {area}/place: Permission denied; this user cannot enter the directory: check its mode\n"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, b"", wanted), show(done)
    assert os.listdir(area / "place") == []


def test_device_member_fails_for_an_ordinary_user(area: Path) -> None:
    require_root("makes the archive of a device")
    info = tarfile.TarInfo("device")
    info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 3
    archive = made_of(area / "a.tar", [(info, b""), member("good")])
    (area / "place").mkdir()
    os.chmod(area / "a.tar", 0o644)
    os.chown(area / "place", NOBODY, NOBODY)
    done = ptar("-xf", archive, "-C", area / "place", user=NOBODY)
    assert done.returncode == 1, show(done)
    assert b"device: mknod: Operation not permitted" in done.stderr
    assert os.listdir(area / "place") == ["good"]


def test_last_of_several_members_of_a_name_is_unpacked(tmp_path: Path, place: Path) -> None:
    members = [member(name, data=b"%d" % number) for number in range(3) for name in ("a", "b")]
    done = ptar("-xf", made_of(tmp_path / "a.tar", members), "-C", place, "--json", ranks=2)
    reported = json.loads(done.stdout)
    assert {name: (place / name).read_bytes() for name in ("a", "b")} == {"a": b"2", "b": b"2"}
    assert (reported["found"], reported["files"], reported["skipped"]) == (6, 2, 4)


def test_implied_directories_inherit_the_set_group_id_bit(tmp_path: Path, place: Path) -> None:
    """No member describes these directories. GNU tar gives them the same mode, with the group of the parent."""
    archive, other = made_of(tmp_path / "a.tar", [member("new/below/file")]), tmp_path / "other"
    other.mkdir()
    for target in (place, other):
        target.chmod(0o2775)
    done = ptar("-xf", archive, "-C", place)
    assert done.returncode == 0, show(done)
    subprocess.run(["tar", "-xf", archive, "-C", other], check=True)
    modes = [[(target / name).stat().st_mode for name in ("new", "new/below")] for target in (place, other)]
    assert modes[0] == modes[1]
    assert modes[0][0] & stat.S_ISGID


@pytest.mark.parametrize("size", [2000, 200_000])
def test_members_before_a_damaged_frame_are_unpacked(size: int, tmp_path: Path) -> None:
    """The second run replaces existing files."""
    pytest.importorskip("zstandard")
    tree, place = tmp_path / "tree", tmp_path / "place"
    tree.mkdir()
    place.mkdir()
    for number in range(7_000_000 // size):
        (tree / f"{number:04}").write_bytes(os.urandom(size))
    assert ptar("-cqf", tmp_path / "a", "--zstd", "-C", tmp_path, "tree").returncode == 0
    data = bytearray((tmp_path / "a").read_bytes())
    at = len(data) * 3 // 4
    data[at] ^= 255
    (tmp_path / "a").write_bytes(data)
    before = subprocess.run(["zstd", "-dc"], input=data[: data.rindex(ZSTD, 0, at)], capture_output=True, check=True)
    reported = subprocess.run(["tar", "-t"], input=before.stdout, capture_output=True, check=False).stdout.split()
    whole = [os.path.basename(name).decode() for name in reported if not name.endswith(b"/")]
    for _ in range(2):
        done = ptar("-x", "-f", tmp_path / "a", "-C", place, ranks=2)
        assert (done.returncode, done.stderr.count(b"is damaged")) == (1, 1), show(done)
        assert done.stderr.count(b"; what follows is not read") == 1
        there = sorted(os.listdir(place / "tree"))
        assert there == whole and len(whole) > 10
        for name in there:
            assert (place / "tree" / name).read_bytes() == (tree / name).read_bytes()
            (place / "tree" / name).write_bytes(b"old")
