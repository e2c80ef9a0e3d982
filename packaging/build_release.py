#!/usr/bin/env python3
"""Builds the files of a release: the source distribution, and one wheel each for x86-64 and aarch64.

    python3 packaging/build_release.py [--output DIRECTORY] [--only ARCHITECTURE|sdist]... [--twice]

Required: Linux, Python 3.11 or later with its headers (python3-dev) and venv (python3-venv), and pip's access to a
package index. Everything else comes from there, in the exact versions of packaging/requirements.txt: zig, a compiler
that has the headers and symbols of old versions of glibc for each architecture, and xxHash's header (xxhash.txt).

Two builds of the same commit, by the same version of Python, make the same files: their times are that of the commit
(or SOURCE_DATE_EPOCH), their order and modes are fixed. The wheels are built from the unpacked source distribution.
--twice checks this: it builds the files a second time under other circumstances and compares them byte for byte.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

PACKAGING = Path(__file__).resolve().parent
CHECKOUT = PACKAGING.parent

GLIBC = (2, 17)
"""The oldest version of glibc with which the wheels work: that of the platform manylinux2014."""

ARCHITECTURES = {"x86_64": ("EM_X86_64", "baseline"), "aarch64": ("EM_AARCH64", "generic")}
"""For each architecture: its name in the ELF header, and the processor for which the C backend is compiled, the oldest
one of the architecture.
"""

ALLOWED_LIBRARIES = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "libm.so.6", "librt.so.1"}
"""Libraries that the C backend may be linked with: parts of glibc."""

PYCONFIG = """
#define STDC_HEADERS 1
#define HAVE_STDINT_H 1
#define HAVE_STDDEF_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_UNISTD_H 1
#define HAVE_WCHAR_H 1
"""
"""The part of ``pyconfig.h`` that Python's headers need with the limited API. Its sizes (``SIZES``) are the same on
both architectures. The header of this host's Python is for its own architecture only.
"""

SIZES = {
    "SHORT": ("short", 2),
    "INT": ("int", 4),
    "LONG": ("long", 8),
    "LONG_LONG": ("long long", 8),
    "FLOAT": ("float", 4),
    "DOUBLE": ("double", 8),
    "LONG_DOUBLE": ("long double", 16),
    "VOID_P": ("void *", 8),
    "SIZE_T": ("__SIZE_TYPE__", 8),
    "WCHAR_T": ("__WCHAR_TYPE__", 4),
}
"""For each ``SIZEOF_...`` of ``pyconfig.h``: the type and its size, which is checked when the C code is compiled."""


class BuildFailed(Exception):
    """The release cannot be built; the message says why."""


def run(*command: str | Path, where: Path | None = None, **environment: str) -> str:
    """Run a command and return its output. Raise ``BuildFailed`` if it fails.

    Locale, umask and order of sets are fixed, so that they do not change the files that it makes.
    """
    env = {**os.environ, "PYTHONHASHSEED": "0", "LC_ALL": "C", **environment}
    words = [*map(str, command)]
    done = subprocess.run(words, check=False, cwd=where, env=env, capture_output=True, text=True, umask=0o022)
    if done.returncode:
        raise BuildFailed(f"{' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}".strip())
    return done.stdout


def commit_time() -> int:
    """Return the time of all files: SOURCE_DATE_EPOCH, or the time of the commit, or of the newest file of an sdist."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    if (CHECKOUT / ".git").exists():
        return int(run("git", "log", "-1", "--format=%ct", where=CHECKOUT))
    return int((CHECKOUT / "PKG-INFO").stat().st_mtime)


def tracked_files() -> list[str]:
    """Return the files of the source: those that git tracks, or those of the source distribution."""
    if (CHECKOUT / ".git").exists():
        return run("git", "ls-files", "-z", where=CHECKOUT).rstrip("\0").split("\0")
    made = ("PKG-INFO", "pcopy.egg-info/")
    listed = (CHECKOUT / "pcopy.egg-info/SOURCES.txt").read_text().splitlines()
    return [name for name in listed if not name.startswith(made)]


def copy_source(directory: Path) -> None:
    """Copy the files of the source, with modes that do not depend on the umask."""
    for name in tracked_files():
        source, target = CHECKOUT / name, directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def build_sdist(python: Path, output: Path, work: Path, time: int) -> Path:
    """Build the source distribution, and return its path."""
    source = work / "source"
    copy_source(source)
    run(python, "setup.py", "-q", "sdist", "--formats=tar", "--dist-dir", work, where=source)
    (made,) = work.glob("pcopy-*.tar")
    packed = output / f"{made.name}.gz"
    # tar.gz with the same bytes each time: setuptools' own contains the time and the user of the build.
    with (
        tarfile.open(made) as old,
        open(packed, "wb") as file,
        gzip.GzipFile("", "wb", 9, file, time) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return packed


def fetch_xxhash(python: Path, work: Path) -> Path:
    """Download xxHash's header and its licence from the package index, and return their directory."""
    requirements = PACKAGING / "xxhash.txt"
    command = (
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--require-hashes",
        "-r",
        requirements,
        "-d",
        work,
    )
    run(python, "-m", "pip", *command)
    (archive,) = work.glob("xxhash-*.tar.gz")
    directory = work / "xxhash"
    directory.mkdir()
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            if "/deps/xxhash/" in member.name and member.isfile():
                content = packed.extractfile(member)
                assert content is not None
                (directory / Path(member.name).name).write_bytes(content.read())
    return directory


def make_headers(work: Path) -> Path:
    """Copy Python's headers, replace ``pyconfig.h``, and return their directory."""
    headers, installed = work / "include", Path(sysconfig.get_path("include"))
    if not (installed / "Python.h").exists():
        raise BuildFailed(f"{installed}/Python.h is missing: install the headers of {sys.executable} (python3-dev)")
    shutil.copytree(installed, headers)
    lines = [PYCONFIG]
    for name, (type_, size) in SIZES.items():
        lines.append(f'#define SIZEOF_{name} {size}\n_Static_assert(sizeof({type_}) == {size}, "{type_}");\n')
    (headers / "pyconfig.h").write_text("".join(lines))
    return headers


def compile_backend(python: Path, source: Path, architecture: str, headers: Path, xxhash: Path, work: Path) -> Path:
    """Compile the C backend for an architecture, and return the path of the shared library."""
    made = work / f"_native.{architecture}.abi3.so"
    compiler = [python, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"]
    compiler += [f"-mcpu={ARCHITECTURES[architecture][1]}", "-fno-sanitize=undefined"]
    run_compiler(compiler, python, source, headers, xxhash, work, made)
    check_library(python, made, architecture)
    return made


def run_compiler(
    compiler: list[str | Path], python: Path, source: Path, headers: Path, xxhash: Path, work: Path, made: Path
) -> None:
    """Compile the C backend into the shared library ``made``. ``compiler`` is the command, with the options for the
    architecture; ``python`` needs cffi.
    """
    generate = (
        "import sys; sys.path.insert(0, '.'); from pcopy.fsio.backend.build_native import make_extension_builder;"
        " make_extension_builder().emit_c_code(sys.argv[1])"
    )
    generated = work / "_native.c"
    run(python, "-c", generate, generated, where=source)
    native = source / "pcopy/fsio/backend/native"
    command = [*compiler, "-std=gnu11", "-O2", "-fPIC", "-pthread", "-shared", "-s", "-DPy_LIMITED_API=0x030b0000"]
    command += ["-DPCOPY_XXH3=1", f"-I{headers}", f"-I{native}", f"-I{xxhash}", f"-ffile-prefix-map={work}=."]
    run(*command, "-o", made, generated, *sorted(native.glob("*.c")), "-ldl")


CHECK = """
import json, sys
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
with open(sys.argv[1], "rb") as file:
    elf = ELFFile(file)
    needed = [tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
    versions = [part.name for section in elf.iter_sections() if isinstance(section, GNUVerNeedSection)
                for _, parts in section.iter_versions() for part in parts]
    symbols = [symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
               if symbol.entry.st_info.type != "STT_FUNC" or symbol.entry.st_shndx == "SHN_UNDEF"]
    defined = [symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
               if symbol.entry.st_shndx != "SHN_UNDEF"]
    print(json.dumps([elf["e_machine"], needed, versions, symbols, defined]))
"""


def check_library(python: Path, library: Path, architecture: str) -> None:
    """Raise ``BuildFailed`` if the library would not load on each host of its platform."""
    import json

    machine, needed, versions, _, defined = json.loads(run(python, "-c", CHECK, library))
    if machine != ARCHITECTURES[architecture][0]:
        raise BuildFailed(f"{library}: is for {machine}")
    if others := set(needed) - ALLOWED_LIBRARIES - {f"ld-linux-{architecture}.so.1", "ld-linux-x86-64.so.2"}:
        raise BuildFailed(f"{library}: is linked with {', '.join(sorted(others))}")
    later = [name for name in versions if name.startswith("GLIBC_") and version(name) > GLIBC]
    if later or not versions:
        raise BuildFailed(f"{library}: needs {', '.join(sorted(later)) or 'no version of glibc'}")
    if "PyInit__native" not in defined:
        raise BuildFailed(f"{library}: does not define PyInit__native")


def version(name: str) -> tuple[int, ...]:
    """Return the version in the name of a set of glibc's symbols, such as ``GLIBC_2.17``."""
    return tuple(int(part) for part in name.removeprefix("GLIBC_").split(".") if part.isdecimal()) or (1 << 30,)


def build_wheel(python: Path, source: Path, library: Path, architecture: str, output: Path, time: int) -> Path:
    """Build the wheel of an architecture from its compiled C backend, and return its path."""
    platform = f"manylinux2014_{architecture}"
    tree, made = source.parent / f"tree-{architecture}", source.parent / f"wheel-{architecture}"
    shutil.copytree(source, tree)
    command = ("setup.py", "-q", "bdist_wheel", "--plat-name", platform, "--dist-dir", made)
    environment = {"PCOPY_PREBUILT_BACKEND": str(library), "SOURCE_DATE_EPOCH": str(time)}
    run(python, *command, where=tree, **environment)
    (wheel,) = made.glob("*.whl")
    if not wheel.name.endswith(f"-cp311-abi3-{platform}.whl"):
        raise BuildFailed(f"{wheel.name}: has another tag than cp311-abi3-{platform}")
    with zipfile.ZipFile(wheel) as packed:
        libraries = [name for name in packed.namelist() if name.endswith(".so")]
        licences = {Path(name).name for name in packed.namelist() if "LICENSE" in name}
    if libraries != ["pcopy/fsio/backend/_native.abi3.so"]:
        raise BuildFailed(f"{wheel.name}: contains {', '.join(libraries) or 'no C backend'}")
    if licences != {"LICENSE", "LICENSE.xxHash"}:
        raise BuildFailed(f"{wheel.name}: contains the licences {', '.join(sorted(licences))}")
    return Path(shutil.move(wheel, output / wheel.name))


def build(output: Path, wanted: list[str]) -> list[Path]:
    """Build the wanted files and return their paths."""
    time = commit_time()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pcopy-release-") as directory:
        work = Path(directory)
        venv.create(work / "venv", with_pip=True)
        python = work / "venv/bin/python"
        run(python, "-m", "pip", "install", "-q", "-r", PACKAGING / "requirements.txt")
        sdist = build_sdist(python, output, work, time)
        made = [sdist]
        architectures = [name for name in wanted if name in ARCHITECTURES]
        if architectures:
            with tarfile.open(sdist) as packed:
                packed.extractall(work / "unpacked", filter="data")
            (source,) = (work / "unpacked").iterdir()
            headers, xxhash = make_headers(work), fetch_xxhash(python, work)
            licence = Path(shutil.copyfile(xxhash / "LICENSE", source / "LICENSE.xxHash"))
            licence.chmod(0o644)
            for name in architectures:
                library = compile_backend(python, source, name, headers, xxhash, work)
                made.append(build_wheel(python, source, library, name, output, time))
        if "sdist" not in wanted:
            sdist.unlink()
            made.remove(sdist)
    return made


def build_twice(output: Path, wanted: list[str]) -> list[Path]:
    """Build the wanted files twice and return their paths. Raise ``BuildFailed`` if a file differs between the builds.

    The second build starts from the unpacked source distribution of the first: later, in another directory, from files
    with other modes, and with another umask and time zone.
    """
    with tempfile.TemporaryDirectory(prefix="pcopy-twice-") as directory:
        first, second = Path(directory, "first"), Path(directory, "second, in a directory with another name")
        made = build(first, ["sdist", *wanted])
        with tarfile.open(made[0]) as packed:
            packed.extractall(second / "unpacked", filter="data")
        (source,) = (second / "unpacked").iterdir()
        run("chmod", "-R", "go-rwx", source)
        script = [sys.executable, source / "packaging/build_release.py", "--output", second / "made"]
        only = [word for name in ("sdist", *wanted) for word in ("--only", name)]
        again = ["sh", "-c", 'umask 077; exec "$@"', "sh", *script, *only]
        run(*again, TMPDIR=str(second), TZ="UTC-14")
        for path in made:
            if path.read_bytes() != (second / "made" / path.name).read_bytes():
                raise BuildFailed(f"{path.name}: two builds differ")
        output.mkdir(parents=True, exist_ok=True)
        names = [path for path in made if "sdist" in wanted or path != made[0]]
        return [Path(shutil.move(path, output / path.name)) for path in names]


def main() -> int:
    """Build what the command line wants, and print the paths."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=CHECKOUT / "dist", help="directory of the files (default: dist)")
    kinds = ["sdist", *ARCHITECTURES]
    parser.add_argument("--only", action="append", choices=kinds, help="build only this file; may be repeated")
    parser.add_argument("--twice", action="store_true", help="build twice; fail if the builds are not the same")
    arguments = parser.parse_args()
    try:
        for path in (build_twice if arguments.twice else build)(arguments.output.absolute(), arguments.only or kinds):
            print(path)
    except BuildFailed as failure:
        print(f"{parser.prog}: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
