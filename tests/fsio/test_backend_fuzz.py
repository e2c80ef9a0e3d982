"""Random directories with injected errors and partial reads and writes: all backends produce the same result."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from tests.support import native
from tests.support.attributes import ACCESS_ACL, DEFAULT_ACL, acl
from tests.support.extent import everything, seed
from tests.support.preload import preloaded
from tests.support.users import require_root
from tests.support.walk import walk

PROGRAM = Path(__file__).with_name("fuzz_backend.py")
ROOT = Path(__file__).resolve().parents[2]
FAULTY = ROOT / "tests/native/faulty.c"
SEEDS = 200 if everything() else 8
FILES = 60

CALLS = (
    *("ropen", "rread", "rfstat", "rflistxattr", "rfgetxattr", "rclose"),
    *("wopen", "wwrite", "wfsetxattr", "wfchown", "wfchmod", "wfutimens", "wfsync", "wclose", "wrename"),
)
ERRNOS = (errno.EACCES, errno.EPERM, errno.EDQUOT, errno.EIO, errno.ENOMEM)
"""Errors without those that end a batch, ENOSPC and EROFS (see test_backend_full)."""
SIZES = (
    0,
    1,
    4096,
    65536,
    (256 << 10) - 1,
    256 << 10,
    (256 << 10) + 1,
    700_000,
    MAX_SMALL_FILE_BYTES,
    MAX_SMALL_FILE_BYTES + 1,
)


def make_source(random: Random, place: Path) -> None:
    for number in range(FILES):
        odd = bytes(random.choice([*range(1, 33), *range(34, 47), *range(48, 256)]) for _ in range(random.randrange(9)))
        path = os.fsencode(place) + b"/%d-%b" % (number, odd)
        if random.random() < 0.3:
            fault = random.choice(("rshort", "wshort", f"{random.choice(CALLS)}{random.choice(ERRNOS)}"))
            path += b"!" + fault.encode()
        kind = random.random()
        if kind < 0.03:
            os.mkfifo(path)
        elif kind < 0.06:
            os.symlink("0", path)
        elif kind < 0.09:
            os.mkdir(path)
        else:
            size = random.choice(SIZES) if random.random() < 0.3 else random.randrange(9000)
            with open(path, "wb") as file:
                if random.random() < 0.05:
                    file.truncate(size)
                else:
                    file.write(random.randbytes(size))
            set_metadata(random, path)


def set_metadata(random: Random, path: bytes) -> None:
    if random.random() < 0.3:
        os.chown(path, random.choice((0, 1, 4242)), random.choice((0, 1, 4243)))
    if random.random() < 0.5:
        os.chmod(path, random.choice((0o644, 0o600, 0o444, 0, 0o755, 0o4755, 0o2711, 0o1666, 0o6777)))
    for name in random.sample(("user.a", "user.b", "trusted.c", "trusted.d"), random.choice((0, 0, 0, 1, 3))):
        os.setxattr(path, name, random.randbytes(random.randrange(30)))
    if random.random() < 0.1:
        os.setxattr(path, ACCESS_ACL, acl(6, 4, 0, {4242: 7}))
    if random.random() < 0.5:
        years = random.choice((1971, 1990, 2020, 2037, 2100))
        os.utime(path, ns=((years - 1970) * 31_556_952 * 10**9 + random.randrange(10**9), random.randrange(10**18)))


def make_target(random: Random, place: Path, source: Path) -> None:
    if random.random() < 0.5:
        os.setxattr(place, DEFAULT_ACL, acl(7, 7, 7, {4243: 7}))
    if random.random() < 0.2:
        place.chmod(0o2755)
        os.chown(place, random.choice((0, 4242)), 4243)
    for name in sorted(os.listdir(source)):
        if random.random() < 0.2:
            path = place / name
            make: Any = random.choice((path.touch, path.mkdir, lambda path=path: path.symlink_to("/nowhere")))
            make()


def properties(place: Path) -> dict[bytes, object]:
    """Return all properties that a copy takes from its source, without those that only depend on the time."""
    entries: dict[bytes, object] = {}
    for entry in walk(os.fsencode(place)):
        if not entry.path:
            continue
        status = entry.status
        contents: bytes | None = None
        if entry.type == 0o100000:
            descriptor = entry.open()
            with open(descriptor, "rb") as file:
                contents = file.read()
        # Times that are not preserved are those of the copying itself.
        times = (status.st_mtime_ns, status.st_atime_ns) if abs(status.st_mtime - status.st_ctime) > 3600 else ()
        entries[entry.path] = status.st_mode, status.st_uid, status.st_gid, times, entry.xattrs(), contents
    return entries


def run(backend: str, number: int, source: Path, target: Path) -> Any:
    command = [sys.executable, str(PROGRAM), backend, str(number), str(source), str(target)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **preloaded(FAULTY)}
    done = subprocess.run(command, check=False, capture_output=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr.decode(errors="backslashreplace")
    return json.loads(done.stdout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(seed() * SEEDS, (seed() + 1) * SEEDS))
def test_all_backends_produce_the_same_result(number: int, on: Any) -> None:
    native.require()
    require_root("own files of others")
    place: Path = on("ext4")
    (place / "source").mkdir()
    make_source(Random(number), place / "source")
    reported, made = {}, {}
    for backend in ("python", "c", "c-threads"):
        target = place / backend
        target.mkdir()
        make_target(Random(f"target {number}"), target, place / "source")
        reported[backend] = run(backend, number, place / "source", target)
        made[backend] = properties(target)
        shutil.rmtree(target)
    for backend in ("c", "c-threads"):
        kept, rows = reported["python"]
        assert [pair for pair in zip(rows, reported[backend][1], strict=True) if pair[0] != pair[1]] == [], (
            backend,
            kept,
        )
        names = made["python"].keys() | made[backend].keys()
        unlike = {name for name in names if made["python"].get(name) != made[backend].get(name)}
        assert {name: (made["python"].get(name), made[backend].get(name)) for name in unlike} == {}, (backend, kept)
