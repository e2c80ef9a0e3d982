"""The algorithms, compared with programs that do not use Python's libraries."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pcopy.errors import RequestRefused
from pcopy.signature.algorithms import ALGORITHM_NAMES, digest_algorithm_named

EMPTY = {
    "xxh3-128": "99aa06d3014798d86001c324468d497f",
    "blake3": "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
}
"""Digests of empty data, from the specifications of the algorithms."""

SAMPLES = (b"", b"a", b"hello\n", bytes(240), bytes(range(256)) * 40, b"\xff" * 100_001)


@pytest.mark.parametrize("name", ALGORITHM_NAMES)
def test_digests_match_the_specifications(name: str) -> None:
    found = digest_algorithm_named(name)
    assert (found.name, found.digest_size, found.digest(b"").hex()) == (name, len(EMPTY[name]) // 2, EMPTY[name])
    assert digest_algorithm_named(name) is found


@pytest.mark.parametrize("name", ALGORITHM_NAMES)
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_digest_of_pieces_equals_digest_of_the_whole(name: str, data: bytes) -> None:
    found = digest_algorithm_named(name)
    hasher = found.new_hasher()
    for at in range(0, len(data), 997):
        hasher.update(memoryview(data)[at : at + 997])
        hasher.digest()
    assert hasher.digest() == found.digest(data) == found.digest(bytearray(data)) == found.digest(memoryview(data))


@pytest.mark.parametrize(("name", "command"), [("xxh3-128", ["xxhsum", "-H2"]), ("blake3", ["b3sum", "--no-names"])])
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_digests_match_those_of_other_programs(name: str, command: list[str], data: bytes, area: Path) -> None:
    if not shutil.which(command[0]):
        pytest.skip(f"there is no {command[0]} here")
    file = area / "data"
    file.write_bytes(data)
    reported = subprocess.run([*command, file], check=True, capture_output=True, text=True).stdout.split()[0]
    assert digest_algorithm_named(name).digest(data).hex() == reported


@pytest.mark.parametrize("name", ["", "md5", "XXH3-128", "blake3 ", "none", "a\nb", "x" * 10000])
def test_unknown_algorithm_is_refused_in_one_short_line(name: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        digest_algorithm_named(name)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 200


def test_missing_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    digest_algorithm_named.cache_clear()
    with pytest.raises(RequestRefused, match="the Python package blake3: pip install blake3"):
        digest_algorithm_named("blake3")


@pytest.mark.parametrize("name", ALGORITHM_NAMES)
def test_libraries_are_loaded_only_when_asked_for(name: str) -> None:
    program = (
        "import sys\n"
        "from pcopy.signature import algorithms, items, manifest, signature_file, sorting, tree\n"
        "print('xxhash' in sys.modules, 'blake3' in sys.modules, 'yaml' in sys.modules)\n"
        f"algorithms.digest_algorithm_named({name!r})\n"
        "print('xxhash' in sys.modules, 'blake3' in sys.modules, 'yaml' in sys.modules)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=root)
    before, after = done.stdout.splitlines()
    assert before == "False False False"
    assert after == ("True False False" if name == "xxh3-128" else "False True False")
