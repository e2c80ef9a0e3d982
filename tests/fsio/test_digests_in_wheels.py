"""XXH3 compiled into the C backend from xxHash's header, as in wheels: the digests are those of python-xxhash and of
libxxhash, and a host without libxxhash computes them in C, too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import xxhash

from tests.support import native, reference_signature

ROOT = Path(__file__).resolve().parents[2]
HEADER = Path("/usr/include/xxhash.h")
BLOCK = 64 << 10
SIZES = sorted(
    # XXH3 has other code for up to 3, 8, 16, 128 and 240 bytes, and then for each stripe of 64 and block of 1024 bytes.
    {edge + by for edge in (1, 4, 9, 17, 129, 241, 1024, BLOCK, 2 * BLOCK, 3 * BLOCK, 256 << 10) for by in (-1, 0, 1)}
)

COMPILE = """
import sys
from pathlib import Path
from pcopy.fsio.backend.build_native import make_extension_builder
print(make_extension_builder(Path(sys.argv[1])).compile(tmpdir=sys.argv[2]))
"""

READ_FILES = """
import importlib.util, json, os, sys
extension, directory, block, *names = sys.argv[1:]
spec = importlib.util.spec_from_file_location("pcopy.fsio.backend._native", extension)
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from pcopy.fsio.backend.batches import ReadSmallFilesBatch
from pcopy.fsio.backend.columns import pack_names
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.native import NativeBackend
from pcopy.fsio.preserve import PreservedMetadataKinds

found = module.lib.pk_find_digest(b"xxh3-128")
digests = []
if found and names:
    def in_python(data):
        assert not data, "the digest is computed in Python"
        return bytes(16)
    backend = NativeBackend(
        BackendSettings(PreservedMetadataKinds(), 0o022, False, in_python, "xxh3-128", int(block))
    )
    opened = os.open(directory, os.O_RDONLY)
    ticket = backend.submit_batch(ReadSmallFilesBatch(opened, pack_names(map(os.fsencode, names)), True))
    while not ticket.is_done:
        backend.poll()
    digests = [ticket.result.digests[row].hex() for row in range(len(names))]
    backend.close()
print(json.dumps([found, digests, "libxxhash" in open("/proc/self/maps").read()]))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C backend with XXH3."""
    native.require()
    if not HEADER.exists():
        pytest.skip("there is no libxxhash-dev here")
    area = tmp_path_factory.mktemp("compiled")
    shutil.copy(HEADER, area)
    env = {**os.environ, "PCOPY_XXHASH_DIRECTORY": str(area)}
    words = [sys.executable, "-c", COMPILE, str(ROOT), str(area / "made")]
    done = subprocess.run(words, check=True, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.splitlines()[-1])


def digests_of(extension: Path, directory: Path, names: list[str], has_library: bool) -> Any:
    """Return what a process reports that reads files with this extension: the number of the algorithm that it found,
    the digests, and whether it has loaded libxxhash. Without ``has_library``, the dynamic linker finds an empty file
    instead of the library, and so can load none.
    """
    hiding = directory.parent / "hiding"
    hiding.mkdir(exist_ok=True)
    (hiding / "libxxhash.so.0").touch()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if not has_library:
        env["LD_LIBRARY_PATH"] = str(hiding)
    words = [sys.executable, "-c", READ_FILES, str(extension), str(directory), str(BLOCK), *names]
    done = subprocess.run(words, check=True, env=env, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def test_digests_compiled_in_are_those_of_the_libraries(compiled: Path, area: Path) -> None:
    directory, random, expected = area / "files", Random(35), []
    directory.mkdir()
    oracle = partial(reference_signature.of_file, block_size=BLOCK, digest=xxhash.xxh3_128_digest)
    for size in SIZES:
        content = random.randbytes(size)
        (directory / f"{size}").write_bytes(content)
        expected.append(oracle(content).hex())
    names = [f"{size}" for size in SIZES]
    assert digests_of(compiled, directory, names, has_library=False) == [1, expected, False]
    assert digests_of(compiled, directory, names, has_library=True) == [1, expected, True]


def test_only_a_backend_of_a_wheel_needs_no_library(compiled: Path, area: Path) -> None:
    """A backend that is compiled on the host uses only the library of the system."""
    (area / "files").mkdir()
    assert digests_of(native.BUILT, area / "files", [], has_library=False)[0] == 0
    assert digests_of(compiled, area / "files", [], has_library=False)[0] == 1
