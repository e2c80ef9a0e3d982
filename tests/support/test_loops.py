"""Loop devices of the tests: no process gets the device of another, a killed process leaves none, and few devices are
shared.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.support import loops
from tests.support.command import REPOSITORY
from tests.support.filesystems import FileSystems, mounted
from tests.support.processes import wait_until
from tests.support.users import require_root

MIB = 1 << 20
ADD, REMOVE = 0x4C80, 0x4C81
FIRST = 5000 + os.getpid() % 100_000 * 4
"""Numbers of devices that the operating system offers to no process as long as others are free."""

KILLED = """\
import sys
from pathlib import Path
from tests.support import loops
print(loops.attach(Path(sys.argv[1])).path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def image(area: Path) -> Path:
    require_root("attach images")
    with open(area / "image", "wb") as file:
        file.truncate(MIB)
    return area / "image"


@pytest.fixture
def nodes(area: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory that replaces /dev, on its own file system that allows devices."""
    require_root("make devices")
    with mounted("tmpfs", area, size=MIB) as place:
        monkeypatch.setattr(loops, "DEVICES", place)
        monkeypatch.setattr(loops, "_WAITING", area / "waiting")
        yield place


@pytest.fixture
def two(nodes: Path) -> Iterator[Path]:
    """Two devices; no more can be added."""
    with open("/dev/loop-control", "wb") as control:
        for number in (FIRST, FIRST + 1):
            with suppress(FileExistsError):  # left by an earlier test, whose device was still being detached at its end
                ioctl(control, ADD, number)
            os.mknod(nodes / f"loop{number}", stat.S_IFBLK | 0o600, os.makedev(7, number))
        try:
            yield nodes
        finally:
            for number in (FIRST, FIRST + 1):
                with suppress(OSError):
                    ioctl(control, REMOVE, number)


def is_attached(device: Path) -> bool:
    return Path(f"/sys/block/{device.name}/loop/backing_file").exists()


def test_concurrent_attachments_get_different_devices(image: Path) -> None:
    with ThreadPoolExecutor(24) as pool:
        devices = list(pool.map(lambda _: loops.attach(image), range(24)))
    try:
        assert len({device.path for device in devices}) == 24
        assert all(stat.S_ISBLK(device.path.stat().st_mode) and is_attached(device.path) for device in devices)
    finally:
        for device in devices:
            device.close()


def test_killed_process_leaves_no_device_attached(image: Path) -> None:
    command: list[str | Path] = [sys.executable, "-c", KILLED, image]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        device = Path(child.stdout.readline().strip())
        assert is_attached(device)
        child.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not is_attached(device) or not backed_by(device, image))


def backed_by(device: Path, image: Path) -> bool:
    with suppress(OSError):
        return Path(f"/sys/block/{device.name}/loop/backing_file").read_text().strip() == str(image)
    return False


def test_missing_device_node_is_created(nodes: Path, image: Path) -> None:
    os.mknod(nodes / "loop-control", stat.S_IFCHR | 0o600, os.stat("/dev/loop-control").st_rdev)
    with loops.attached(image) as device:
        assert device.parent == nodes
        assert backed_by(device, image)


def test_third_attachment_waits_until_one_of_two_devices_is_free(two: Path, image: Path) -> None:
    first, second = loops.attach(image), loops.attach(image)
    third: list[loops.Attached] = []
    waiting = threading.Thread(target=lambda: third.append(loops.attach(image)))
    waiting.start()
    try:
        assert wait_until(loops.is_awaited)
        assert third == []
        second.close()
        waiting.join(60)
        assert [device.path for device in third] == [second.path]
        assert not loops.is_awaited()
    finally:
        for device in (first, second, *third):
            device.close()


def test_cached_mounts_are_released_for_a_waiting_process(two: Path, image: Path, area: Path) -> None:
    """Two kinds that no test uses at the moment: both are unmounted for the waiting process, and mounted again when
    needed.
    """
    made = FileSystems(area)
    try:
        with made.directory("ext4") as used, made.directory("ext4-128"):
            (used / "file").touch()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(loops.attach, image)
            assert wait_until(loops.is_awaited)
            made.release()
            waiting.result(60).close()
        with made.directory("ext4") as again:
            assert list(again.iterdir()) == []
    finally:
        made.close()


def test_mount_in_use_by_a_test_is_not_released(
    two: Path, image: Path, area: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = FileSystems(area)
    try:
        with made.directory("ext4") as used:
            monkeypatch.setattr(loops, "is_awaited", lambda: True)
            made.release()
            assert os.path.ismount(used.parent)
        assert not os.path.ismount(used.parent)
    finally:
        made.close()


def test_timed_out_wait_for_a_device_reports_the_reason(
    two: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "SECONDS", 0.3)
    with (
        loops.attached(image) as first,
        loops.attached(image),
        pytest.raises(pytest.fail.Exception, match=r"no loop device became free within 0\.3 s") as caught,
    ):
        loops.attach(image)
    assert first.name in str(caught.value)


def test_machine_without_loop_devices_skips_the_test(nodes: Path, image: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="this machine has no loop device for tests: it has none"):
        loops.attach(image)


def test_all_tests_attach_images_through_this_module() -> None:
    """Other methods fail if devices are scarce, or keep a device after a worker was killed."""
    found = [
        str(path)
        for path in sorted((REPOSITORY / "tests").rglob("*.py"))
        if path.parent.name != "support" or "loops" not in path.name
        if re.search(r'"losetup", "(--find|-f|--detach|-d)|"-o", "loop|"loop[",]', path.read_text())
        if path.name not in ("trees.py", "test_items.py")  # these use the word as a file name
    ]
    assert found == []
