"""The source distribution and the packed C backend, as packaging/build_release.py makes them."""

from __future__ import annotations

import os
import runpy
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import native

ROOT = Path(__file__).resolve().parents[1]
EPOCH = 1_700_000_000


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "packaging/build_release.py"))


def made_sdist(release: dict[str, Any], area: Path, name: str) -> Path:
    for directory in ("output", "work"):
        (area / name / directory).mkdir(parents=True)
    made = release["build_sdist"](Path(sys.executable), area / name / "output", area / name / "work", EPOCH)
    assert isinstance(made, Path)
    return made


def test_sdist_has_all_files_and_is_the_same_each_time(release: dict[str, Any], area: Path) -> None:
    sdist = made_sdist(release, area, "one")
    umask = os.umask(0o077)
    try:
        assert made_sdist(release, area, "another").read_bytes() == sdist.read_bytes()
    finally:
        os.umask(umask)
    with tarfile.open(sdist) as packed:
        members = {member.name.partition("/")[2]: member for member in packed.getmembers() if member.isfile()}
        contents = {name: file.read() for name, member in members.items() if (file := packed.extractfile(member))}
    modes = {name: bool(member.mode & 0o100) for name, member in members.items()}
    made = {name for name in members if name in ("PKG-INFO",) or name.startswith("pcopy.egg-info/")}
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], check=True, cwd=ROOT, capture_output=True, text=True)
        tracked = set(listed.stdout.rstrip("\0").split("\0"))
    else:
        tracked = {str(path.relative_to(ROOT)) for path in (ROOT / "bench").rglob("*.py")}
        assert tracked <= members.keys()
        tracked = members.keys() - made
    assert members.keys() - made == tracked
    for name in tracked:
        executable = bool((ROOT / name).stat().st_mode & 0o100)
        assert (name, contents[name], modes[name]) == (name, (ROOT / name).read_bytes(), executable)


def made_wheel(release: dict[str, Any], place: Path, umask: int) -> Path:
    """Build a wheel with the C backend of the tests, under the given umask, in a directory below ``place``."""
    source, output = place / "source", place / "output"
    release["copy_source"](source)
    (source / "LICENSE.xxHash").write_text("The licence of xxHash\n")
    (source / "LICENSE.xxHash").chmod(0o644)
    output.mkdir()
    before = os.umask(umask)
    try:
        made = release["build_wheel"](Path(sys.executable), source, native.BUILT, "x86_64", output, EPOCH)
    finally:
        os.umask(before)
    assert isinstance(made, Path)
    return made


def test_wheel_is_the_same_each_time(release: dict[str, Any], area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--twice also compares what zig compiles."""
    native.require()
    monkeypatch.setenv("TZ", "UTC+11")
    wheel = made_wheel(release, area / "one", 0o022)
    monkeypatch.setenv("TZ", "UTC-14")
    another = made_wheel(release, area / "another, with a longer name", 0o077)
    assert another.name == wheel.name and another.read_bytes() == wheel.read_bytes()
    with zipfile.ZipFile(wheel) as packed:
        members = packed.infolist()
    assert {member.date_time for member in members} == {(2023, 11, 14, 22, 13, 20)}  # EPOCH in UTC
    modes = {stat.S_IMODE(member.external_attr >> 16) for member in members if not member.filename.endswith("/RECORD")}
    assert modes == {0o644, 0o755}


def build(area: Path, prebuilt: Path, source: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PCOPY_PREBUILT_BACKEND": str(prebuilt)}
    words = ["setup.py", "-q", "build", "--build-base", str(area / "build"), "--build-lib", str(area / "lib")]
    return subprocess.run([sys.executable, *words], check=False, cwd=source, env=env, capture_output=True, text=True)


def test_release_build_packs_the_given_backend_and_removes_old_ones(release: dict[str, Any], area: Path) -> None:
    native.require()
    release["copy_source"](area / "source")
    packed = area / "lib/pcopy/fsio/backend"
    packed.mkdir(parents=True)
    (packed / "_native.cpython-311-x86_64-linux-gnu.so").write_bytes(b"old")
    done = build(area, native.BUILT, area / "source")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in packed.glob("*.so")) == ["_native.abi3.so"]
    assert (packed / "_native.abi3.so").read_bytes() == native.BUILT.read_bytes()


def test_release_build_fails_without_the_backend(release: dict[str, Any], area: Path) -> None:
    release["copy_source"](area / "source")
    done = build(area, area / "missing.so", area / "source")
    assert done.returncode != 0 and "missing.so" in done.stderr


def test_checkout_build_removes_files_that_shadow_the_backend(area: Path) -> None:
    """Python prefers _native.cpython-….so to _native.abi3.so."""
    native.require()
    found = subprocess.run(["git", "ls-files", "-z", "pcopy"], check=False, cwd=ROOT, capture_output=True, text=True)
    names = found.stdout.rstrip("\0").split("\0") if not found.returncode else []
    names = names or [str(path.relative_to(ROOT)) for path in (ROOT / "pcopy").rglob("*") if path.is_file()]
    for name in names:
        (area / name).parent.mkdir(parents=True, exist_ok=True)
        (area / name).write_bytes((ROOT / name).read_bytes())
    backend = area / "pcopy/fsio/backend"
    (backend / "_native.cpython-311-x86_64-linux-gnu.so").write_bytes(b"old")
    subprocess.run([sys.executable, backend / "build_native.py"], check=True, capture_output=True)
    assert sorted(path.name for path in backend.glob("*.so")) == ["_native.abi3.so"]
