"""``--manifest``: one line for each item in tree order, the relation to the signature, and the differences found."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import reference_signature as reference
from tests.support.command import pcopy, pverify, show, succeed
from tests.support.damages import DAMAGES, damage_all, make_tree, make_trees
from tests.support.signatures import VECTORS, expected, manifest_lines, recomputed, reported, signed
from tests.support.trees import random_tree
from tests.support.users import is_root

MIB = 1 << 20
AWKWARD = (
    b"\\",
    b"\\n",
    b"a\\",
    b"\n",
    b"\r",
    b" ",
    b"  x ",
    b"a b",
    b"a.b",
    b"ab",
    b"\xff",
    b"\x01",
    b"...",
    b"-",
    b"#",
)


@pytest.mark.parametrize(("ranks", "block", "chunk"), [(1, 64 << 10, "auto"), (2, 4 * MIB, "4M"), (5, 64 << 10, "1M")])
def test_manifest_has_every_entry_with_its_digest(area: Path, ranks: int, block: int, chunk: str) -> None:
    random_tree(area / "source", ranks, files=50, directories=15, largest=6 * MIB, privileged=is_root())
    options = ("--signature", area / "sig", "--manifest", area / "manifest", "--block-size", str(block))
    succeed(*options, "--chunk-size", chunk, area / "source", area / "copy", ranks=ranks)
    assert (area / "manifest").read_bytes() == reference.manifest(os.fsencode(area / "source"), block)
    assert recomputed(area / "manifest") == signed(area / "sig") == expected(area / "source", block)
    options = ("--create", area / "sig2", "--manifest", area / "manifest2", "--block-size", str(block))
    run = pverify(*options, area / "copy", ranks=6 - ranks)
    assert run.returncode == 0, show(run)
    assert (area / "manifest2").read_bytes() == (area / "manifest").read_bytes()
    assert pverify("--manifest", area / "manifest", area / "copy", ranks=ranks).returncode == 0


def test_names_are_escaped_in_a_manifest(area: Path) -> None:
    top = os.fsencode(area / "source")
    for directory in (b"", *AWKWARD):
        os.makedirs(os.path.join(top, directory), exist_ok=True)
        for name in AWKWARD:
            if directory:
                Path(os.fsdecode(os.path.join(top, directory, name))).write_bytes(name)
    succeed("--manifest", area / "manifest", area / "source", area / "copy", ranks=3)
    paths = [line.path for line in manifest_lines(area / "manifest")]
    assert paths[0] == b"." and len(paths) == 1 + len(AWKWARD) * (1 + len(AWKWARD))
    assert paths[1:] == sorted(paths[1:], key=lambda path: path.replace(b"/", b"\0"))
    assert (area / "manifest").read_bytes() == reference.manifest(top)
    assert pverify("--manifest", area / "manifest", area / "copy").returncode == 0


def test_manifest_of_twenty_thousand_entries_by_three_ranks(area: Path) -> None:
    """These are more entries than are sent, or stored in memory, at a time."""
    for number in range(40):
        (area / f"source/{number % 7}/{number}").mkdir(parents=True)
        for name in range(500 if number else 5000):
            with open(area / f"source/{number % 7}/{number}/{name}", "w") as file:
                file.write("x" * (name % 3))
    run = pverify("-q", "--create", area / "sig", "--manifest", area / "manifest", area / "source", ranks=3)
    assert run.returncode == 0, show(run)
    assert (area / "manifest").read_bytes() == reference.manifest(os.fsencode(area / "source"))
    run = pverify("-q", "--manifest", area / "manifest", area / "source", ranks=3)
    assert (run.returncode, run.stdout) == (0, b""), show(run)


def test_manifest_of_several_sources_and_of_single_items(area: Path) -> None:
    VECTORS["outer"].make(area / "one")
    VECTORS["hello"].make(area / "two")
    (area / "copy").mkdir()
    succeed("--manifest", area / "manifest", area / "one", area / "two", area / "copy", ranks=2)
    assert (area / "manifest").read_bytes() == reference.manifest(os.fsencode(area / "copy"))
    succeed("--manifest", area / "manifest", area / "two", area / "three", ranks=2)
    assert (area / "manifest").read_bytes() == b"#pcopy-manifest 1 xxh3-128 4194304\nf %s 6 .\n" % (
        VECTORS["hello"].large.encode()
    )
    assert pverify("--manifest", area / "manifest", area / "three").returncode == 0


def test_manifest_is_written_only_with_a_complete_signature(area: Path) -> None:
    """``--signature`` is not required, and skipped items are included."""
    VECTORS["outer"].make(area / "source")
    for _ in range(2):
        run = succeed("--existing", "skip", "--manifest", area / "manifest", f"{area}/source/", area / "copy")
        assert f"signature {VECTORS['outer'].large}".encode() in run.stdout
        assert recomputed(area / "manifest") == VECTORS["outer"].large
    (area / "manifest").unlink()
    (area / "source/gone").symlink_to("nowhere")
    run = pcopy("-L", "--manifest", area / "manifest", area / "source", area / "copy")
    assert run.returncode == 1 and not (area / "manifest").exists(), show(run)


def test_pverify_names_each_damaged_item(area: Path) -> None:
    """Exactly the differences are printed, in tree order, both by manifest and by comparison with the other tree."""
    make_trees(area / "before")
    subprocess.run(["cp", "-a", area / "before", area / "after"], check=True)
    run = pverify("--create", area / "sig", "--manifest", area / "manifest", area / "before", ranks=2)
    assert run.returncode == 0, show(run)
    damage_all(area / "after")
    lines = [line.split(" ", 1) for name in sorted(DAMAGES) for line in damage_lines(name)]
    lines.sort(key=lambda line: line[1].replace("/", "\0"))
    for words in (("--manifest", area / "manifest", area / "after"), (area / "before", area / "after")):
        run = pverify("-q", *words, ranks=3)
        assert (run.returncode, run.stderr) == (1, b""), show(run)
        assert reported(run) == [" ".join(line) for line in lines]


def damage_lines(name: str) -> list[str]:
    """Return the lines that pverify prints for the damaged tree ``name``."""
    return [line.replace(" ", f" {name}/", 1) for line in DAMAGES[name].reported]


@pytest.fixture(scope="module")
def signed_tree(session_scratch: Path) -> Path:
    """A directory with an undamaged tree and its signature."""
    place = session_scratch / "damages"
    place.mkdir()
    make_tree(place / "tree")
    run = pverify("--create", place / "sig", place / "tree", ranks=2)
    assert run.returncode == 0, show(run)
    return place


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_changes_the_signature(area: Path, signed_tree: Path, name: str) -> None:
    subprocess.run(["cp", "-a", signed_tree / "tree", area / "tree"], check=True)
    DAMAGES[name].do(area / "tree")
    run = pverify("-q", signed_tree / "sig", area / "tree", ranks=2)
    assert (run.returncode, run.stdout, run.stderr) == (1, b"", b""), show(run)
