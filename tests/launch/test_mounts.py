"""Mounts inside SRC and DST, on hosts that see them in different ways.

The second host is rank 1 with a name and mounts of its own. It is another machine, too, where its kernel has another
boot_id.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launchers import Launchers, assert_refused
from tests.launch.test_hosts import elsewhere
from tests.support.command import Argument, show, summary
from tests.support.files import write
from tests.support.filesystems import Place, mounted, unmount
from tests.support.oracle import changes, differences, snapshot
from tests.support.walk import temporaries

BOOT_ID = "/proc/sys/kernel/random/boot_id"
ANOTHER_MACHINE = f"sed s/[0-9]/7/g {BOOT_ID} >$PLACE/boot_id; mount --bind $PLACE/boot_id {BOOT_ID}"


@pytest.fixture
def disk(area: Path, session_scratch: Path) -> Iterator[Path]:
    """What is mounted below SRC or DST: 30 files."""
    with mounted("tmpfs", session_scratch) as point:
        for number in range(30):
            write(point / "data" / str(number), b"content")
        yield point


@pytest.fixture
def inside(source: Path, area: Path, disk: Path) -> Iterator[Path]:
    """A mount in the source, and a destination that has a directory of that name."""
    point = source / "b/disk"
    point.mkdir()
    (area / "copy/b/disk").mkdir(parents=True)
    bind(disk, point)
    try:
        yield point
    finally:
        unmount(point)


def bind(what: Path, where: Path) -> None:
    subprocess.run(["mount", "--bind", what, where], check=True)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("words", [[], ["--verify"], ["-x"]])
@pytest.mark.parametrize("name", ["hydra", "open_mpi"])
def test_host_without_a_mount_in_the_source_is_refused(
    launchers: Launchers, area: Path, source: Path, inside: Path, name: str, words: list[Argument]
) -> None:
    before = snapshot(area)
    env = {"CHANGE": f"umount {inside}"}
    run = launchers.run(name, 3, *words, "-T", source, area / "copy", env=env, wrap=elsewhere())
    assert_refused(run, f"{inside}: ", "on other: nothing is mounted", f"on {os.uname().nodename}: ")
    assert changes(before, snapshot(area)) == []


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("change", ["mount --bind {disk} {point}", "mount --bind {disk}/data {point}"])
@pytest.mark.parametrize("side", ["source", "copy"])
def test_mount_on_another_host_only_is_refused(
    launchers: Launchers, area: Path, source: Path, disk: Path, side: str, change: str
) -> None:
    point = area / side / "a"
    point.mkdir(parents=True, exist_ok=True)
    env = {"CHANGE": change.format(disk=disk, point=point)}
    run = launchers.run("hydra", 2, "-T", source, area / "copy", env=env, wrap=elsewhere())
    assert_refused(run, f"{point}: ", "on other: ", f"on {os.uname().nodename}: nothing is mounted")
    assert sorted(os.listdir(disk)) == ["data"]


def test_directory_bind_mounted_over_another_on_one_host_is_refused(
    launchers: Launchers, area: Path, source: Path
) -> None:
    """Bind mounts within one file system: one device number, and other inodes."""
    env = {"CHANGE": f"mount --bind {source}/a {source}/b"}
    run = launchers.run("hydra", 2, source, area / "copy", env=env, wrap=elsewhere())
    assert_refused(run, f"{source}/b: ", "on other: ")


def test_host_without_a_mount_in_the_destination_is_refused(
    launchers: Launchers, area: Path, source: Path, disk: Path
) -> None:
    point = area / "copy/b"
    point.mkdir(parents=True)
    bind(disk, point)
    try:
        before = snapshot(disk)
        env = {"CHANGE": f"umount {point}"}
        run = launchers.run("hydra", 2, "-T", source, area / "copy", env=env, wrap=elsewhere())
        assert_refused(run, f"{point}: ", "on other: nothing is mounted")
        assert changes(before, snapshot(disk)) == []
    finally:
        unmount(point)
    assert os.listdir(point) == []


def test_different_file_system_of_same_type_on_one_host_is_refused(
    launchers: Launchers, area: Path, source: Path, inside: Path, session_scratch: Path
) -> None:
    with mounted("tmpfs", session_scratch) as twin:
        assert twin.stat().st_ino == inside.stat().st_ino
        env = {"CHANGE": f"umount {inside}; mount --bind {twin} {inside}"}
        run = launchers.run("hydra", 2, "-T", source, area / "copy", env=env, wrap=elsewhere())
        assert_refused(run, f"{inside}: ", "on other: type 0x1021994")


def test_mounts_that_all_hosts_have_are_copied(
    launchers: Launchers, area: Path, source: Path, inside: Path, session_scratch: Path
) -> None:
    """Also files on which a file is mounted; and the files that show what is below DST are gone."""
    write(area / "file", b"mounted")
    bind(area / "file", source / "d/3")
    try:
        with mounted("tmpfs", session_scratch) as target:
            bind(target, area / "copy/b/disk")
            try:
                run = launchers.run(
                    "hydra", 3, "--json", "-q", "-T", source, area / "copy", env={"CHANGE": "true"}, wrap=elsewhere()
                )
                assert summary(run)["ranks"] == 3, show(run)
                assert differences(source, area / "copy") == []
                assert len(os.listdir(target / "data")) == 30
                assert temporaries(os.fsencode(area)) == []
            finally:
                unmount(area / "copy/b/disk")
        assert (area / "copy/d/3").read_bytes() == b"mounted"
    finally:
        unmount(source / "d/3")


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_local_file_systems_of_two_machines_are_refused(
    launchers: Launchers, area: Path, source: Path, on: Place, kind: str
) -> None:
    """They can't be one file system, even if everything that is told of them is equal."""
    tree = on(kind) / "tree"
    shutil.copytree(source, tree)
    env = {"CHANGE": ANOTHER_MACHINE, "PLACE": str(area)}
    run = launchers.run("hydra", 2, tree, area / "copy", env=env, wrap=elsewhere())
    assert_refused(
        run, f"{tree}/: ", "each host has a file system of its own here (a local disk or memory): ", "on other: "
    )


def test_network_file_system_of_two_machines_is_accepted(launchers: Launchers, area: Path, source: Path) -> None:
    """Here bindfs stands for it, which has no device of its own, no id and no UUID."""
    if not shutil.which("bindfs"):
        pytest.skip("there is no bindfs here")
    for name in ("remote", "shared"):
        (area / name).mkdir()
    if subprocess.run(["bindfs", area / "remote", area / "shared"], check=False, capture_output=True).returncode:
        pytest.skip("bindfs can't mount here")
    try:
        source.rename(area / "remote/source")
        env = {"CHANGE": ANOTHER_MACHINE, "PLACE": str(area), "XDG_STATE_HOME": str(area / "shared/state")}
        words: list[Argument] = ["--json", "-q", area / "shared/source", area / "shared/copy"]
        run = launchers.run("hydra", 2, *words, env=env, wrap=elsewhere())
        assert summary(run)["ranks"] == 2, show(run)
        assert differences(area / "remote/source", area / "remote/copy") == []
    finally:
        subprocess.run(["umount", area / "shared"], check=True)
