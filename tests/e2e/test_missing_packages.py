"""Python packages that are not installed: what needs one is refused by its name, and everything else works."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import native
from tests.support.command import REPOSITORY, pcopy, show, succeed

REFUSED = [
    ("xxhash", "pcopy", ["--verify", "tree", "copy"]),
    ("xxhash", "pcopy", ["--signature", "sig", "tree", "copy"]),
    ("xxhash", "psync", ["--repair", "tree/", "copy/"]),
    ("xxhash", "pverify", ["tree", "tree"]),
    ("xxhash", "pverify", ["--create", "sig", "tree"]),
    ("blake3", "pcopy", ["--hash", "blake3", "tree", "copy"]),
    ("blake3", "pverify", ["--hash", "blake3", "tree", "tree"]),
    ("yaml", "pverify", ["sig", "tree"]),
    ("zstandard", "pcopy", ["--compress", "zstd", "tree", "copy"]),
    ("zstandard", "pcopy", ["--decompress", "tree", "copy"]),
    ("zstandard", "ptar", ["-c", "--zstd", "-f", "copy", "tree"]),
    ("pyarrow", "pwalk", ["--output", "copy.parquet", "tree"]),
    ("lmdb", "pcopy", ["--checkpoint-store", "lmdb", "--checkpoint", "job", "tree", "copy"]),
]


@pytest.mark.parametrize(("module", "program", "words"), REFUSED, ids=lambda value: str(value).replace("/", ""))
def test_use_of_a_missing_package_is_refused_by_name(area: Path, module: str, program: str, words: list[str]) -> None:
    (area / "tree").mkdir()
    (area / "tree/file").write_text("content")
    if words[0] == "sig":
        succeed("--create", area / "sig", area / "tree", program="pverify")
    env = _without(area, module)
    before = sorted(os.listdir(area))
    run = pcopy(*words, program=program, env=env, cwd=area)
    package = {"yaml": "PyYAML"}.get(module, module)
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    (line,) = run.stderr.decode().splitlines()
    assert line.startswith(f"{program}: ") and f"needs the Python package {package}: pip install {package}" in line
    assert sorted(os.listdir(area)) == before
    assert (area / "tree/file").read_text() == "content"


@pytest.mark.parametrize("backend", ["c", "python"])
def test_plain_copy_needs_no_optional_package(area: Path, backend: str) -> None:
    (area / "tree").mkdir()
    (area / "tree/file").write_text("content")
    modules = ("blake3", "lmdb", "mpi4py", "pyarrow", "rich", "xxhash", "yaml", "zstandard")
    if backend == "c":
        native.require()
    env = {**_without(area, *modules), "PCOPY_BACKEND": backend}
    run = pcopy("tree", "copy", env=env, cwd=area)
    assert run.returncode == 0, show(run)
    assert subprocess.run(["diff", "-r", area / "tree", area / "copy"], check=False).returncode == 0


def _without(area: Path, *modules: str) -> dict[str, str]:
    """Return an environment in which these modules cannot be found."""
    (area / "hidden").mkdir()
    for module in modules:
        error = f"raise ModuleNotFoundError(\"No module named '{module}'\", name='{module}')\n"
        (area / f"hidden/{module}.py").write_text(error)
    return {"PYTHONPATH": f"{area}/hidden:{REPOSITORY}"}
