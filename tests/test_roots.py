"""pcopy in small systems of their own (roots): the wheel in a fresh root, without network, and the C backend for
aarch64 in an emulator.

``bin/install-debian-packages tests`` has downloaded the packages of which the short tests unpack the roots.
``PCOPY_TESTS=all`` also makes roots of several versions of Debian with debootstrap, from the mirror of this host's apt.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import native
from tests.support.command import pverify, show
from tests.support.oracle import differences
from tests.support.trees import random_tree
from tests.support.users import require_root

ROOT = Path(__file__).resolve().parents[1]
DOWNLOADED = Path("/var/cache/pcopy-tests")
REQUIREMENTS = "cffi lmdb rich xxhash yaml zstandard"
SUITES = {"bookworm": ["python3-ply"], "trixie": ["python3-ply"], "forky": []}
"""The versions of Debian, with packages that debootstrap does not find by itself: it ignores virtual packages."""
EPOCH = 1_700_000_000

IN_NAMESPACES = """
mount -t proc proc "$1/proc"
mount --bind /dev "$1/dev"
mount -t tmpfs -o mode=1777 tmp "$1/tmp"
shift
exec env -i PATH="$PATH" HOME=/home/user LC_ALL=C "$@"
"""

AS_USER = """
cd /home/user
python3 -m venv --system-site-packages venv
venv/bin/pip install -q --no-index --no-deps /wheel/*.whl
venv/bin/pip check --disable-pip-version-check || true
/check_installed.sh /home/user/venv/bin/pcopy
"""


def program(name: str) -> str:
    """Return the path of a program; skip the test if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here")
    return found


def debian_architecture() -> str:
    if not shutil.which("dpkg"):
        pytest.skip("no Debian")
    return subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout.strip()


def unpack_packages(architecture: str, root: Path) -> None:
    """Unpack the downloaded packages for an architecture into ``root``. None of their scripts is run."""
    packages = sorted((DOWNLOADED / architecture).glob("*.deb"))
    if not packages:
        pytest.skip(f"no packages for a root of {architecture}: bin/install-debian-packages tests downloads them")
    for name in ("home/user", "proc", "dev", "tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    unpack = 'for package; do dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink; done'
    subprocess.run(["sh", "-eu", "-c", unpack, "sh", *packages], check=True, cwd=root)


def run_in_root(root: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command that starts with ``chroot`` in namespaces of its own: without network, with mounts that end with
    it.
    """
    namespaces = ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-eu", "-c", IN_NAMESPACES, "sh"]
    words = [*namespaces, root, *command]
    return subprocess.run(words, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    native.require()
    require_root("run programs in another root")
    return runpy.run_path(str(ROOT / "packaging/build_release.py"))


def check_wheel(release: dict[str, Any], root: Path, area: Path) -> None:
    """Build a wheel with the C backend of the tests, and try it in ``root`` as an ordinary user, with the requirements
    that Debian's packages provide. mpi4py, which only a job under a launcher needs, is absent.
    """
    release["copy_source"](area / "source")
    (area / "source/LICENSE.xxHash").touch()
    (root / "wheel").mkdir()
    release["build_wheel"](
        Path(sys.executable), area / "source", native.BUILT, os.uname().machine, root / "wheel", EPOCH
    )
    shutil.copy(ROOT / "packaging/tests/check_installed.sh", root)
    (root / "home/user").mkdir(parents=True, exist_ok=True)
    os.chown(root / "home/user", 1000, 1000)
    done = run_in_root(root, "chroot", "--userspec=1000:1000", root, "/bin/sh", "-eu", "-c", AS_USER)
    assert (done.returncode, done.stderr) == (0, ""), done
    checked, version, copied = done.stdout.splitlines()
    assert checked.endswith(" requires mpi4py, which is not installed."), done.stdout
    assert version.endswith("(backend c)") and copied == "copied and compared: 203 items", done.stdout


def test_wheel_works_in_a_fresh_root(release: dict[str, Any], area: Path) -> None:
    root = area / "root"
    unpack_packages(debian_architecture(), root)
    check_wheel(release, root, area)


@pytest.mark.in_turn(0)
@pytest.mark.parametrize(("suite", "extra"), SUITES.items())
def test_wheel_works_in_a_root_by_debootstrap(
    suite: str, extra: list[str], release: dict[str, Any], area: Path
) -> None:
    root, scripts = area / "root", Path("/usr/share/debootstrap/scripts")
    mirror = subprocess.run([ROOT / "packaging/tests/mirror.sh"], check=False, capture_output=True, text=True).stdout
    if not mirror:
        pytest.skip("no Debian")
    packages = ",".join(["python3-venv", *(f"python3-{name}" for name in REQUIREMENTS.split()), *extra])
    words: list[str | Path] = [
        program("debootstrap"),
        "--variant=minbase",
        f"--include={packages}",
        suite,
        root,
        mirror.strip(),
    ]
    script = scripts / suite if (scripts / suite).exists() else scripts / "sid"  # an older debootstrap
    made = subprocess.run([*words, script], check=False, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-2000:]
    check_wheel(release, root, area)


def test_backend_for_aarch64_copies_in_an_emulator(release: dict[str, Any], area: Path) -> None:
    """The headers with which releases are compiled, and another architecture; the compiler of releases is zig."""
    root, work, package = area / "root", area / "work", Path("usr/lib/python3/dist-packages/pcopy")
    emulator, compiler = program("qemu-aarch64-static"), program("aarch64-linux-gnu-gcc")
    header = Path("/usr/include/xxhash.h")
    if not header.exists():
        pytest.skip("there is no libxxhash-dev here")
    unpack_packages("arm64", root)
    work.mkdir()
    release["copy_source"](work / "source")
    (work / "xxhash").mkdir()
    shutil.copy(header, work / "xxhash")
    shutil.copytree(work / "source/pcopy", root / package)
    made = root / package / "fsio/backend/_native.abi3.so"
    headers = release["make_headers"](work)
    release["run_compiler"](
        [compiler, "-Wall"], Path(sys.executable), work / "source", headers, work / "xxhash", work, made
    )
    shutil.copy(emulator, root / "qemu")
    random_tree(root / "source", 35, files=60, directories=10, largest=2 << 20)
    # One rank: the emulator has threads of its own, and pcopy forks ranks only where it has one thread.
    pcopy: list[str | Path] = ["chroot", root, "/qemu", "/usr/bin/python3", "-P", "-m", "pcopy"]
    version = run_in_root(root, *pcopy, "--version")
    assert version.stdout.endswith("(backend c)\n"), version
    words = ["-n", "1", "--json", "--verify", "--signature", "/signature", "-T", "/source", "/copy"]
    done = run_in_root(root, *pcopy, *words)
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["failed"] == 0
    assert not differences(root / "source", root / "copy")
    checked = pverify(root / "signature", root / "copy")
    assert checked.returncode == 0, show(checked)
