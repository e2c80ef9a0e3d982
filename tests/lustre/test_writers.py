"""Which rank writes to which OST, under which lock, and which data is on storage afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.lustre.conftest import Lustre
from tests.lustre.standin import SERVER
from tests.lustre.test_copies import MIB, done, make, run, same
from tests.support.command import show
from tests.support.users import NOBODY, require_root


def writers(lustre: Lustre, path: Path) -> dict[int, dict[int, int]]:
    """Return the bytes of a file by process and OST."""
    found: defaultdict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for event in lustre.events("write"):
        if (
            event.numbers["ino"] == path.stat().st_ino and event.numbers["bytes"] > 1
        ):  # not the byte that makes a server sync
            found[event.process][event.numbers["ost"]] += event.numbers["bytes"]
    return found


@pytest.mark.parametrize("words", [[], ["--hash", "xxh3-128", "--block-size", "1M"]])
def test_with_affinity_each_rank_writes_to_its_own_osts(lustre: Lustre, words: list[str]) -> None:
    source = lustre.first / "file"
    make(lustre, source, b"", 64 * MIB + 12345)
    met = {}
    for name, more in (("plain", []), ("apart", ["--stripe-affinity", "--group-lock"])):
        target = lustre.second / name
        done(lustre, "-n", 2, "--stripe", "4:1M", "--chunk-size", "4M", *words, *more, source, target)
        assert subprocess.run(["cmp", source, target], check=False).returncode == 0
        met[name] = writers(lustre, target)
        assert sum(sum(each.values()) for each in met[name].values()) == source.stat().st_size
    assert sorted(map(len, met["apart"].values())) == [2, 2]
    assert len(met["plain"]) == 2 and max(map(len, met["plain"].values())) == 4
    locks, given_back = lustre.events("grouplock"), lustre.events("groupunlock")
    assert len(locks) == len(given_back) > 4
    assert len({event.numbers["gid"] for event in locks}) == 1


def test_stripe_affinity_has_no_effect_if_stripes_are_not_whole_blocks(lustre: Lustre) -> None:
    source, target = lustre.first / "file", lustre.second / "file"
    make(lustre, source, b"", 40 * MIB)
    words = ["--stripe", "4:3M", "--stripe-affinity", "--verify", "--block-size", "1M", "--json"]
    reported = done(lustre, "-n", 2, *words, source, target)
    assert json.loads(reported.stdout)["warnings"] == 1
    assert (
        b"--stripe-affinity has no effect: the stripe size of the file must be a power of two times" in reported.stderr
    )
    assert subprocess.run(["cmp", source, target], check=False).returncode == 0


@pytest.mark.parametrize("words", [["--group-lock"], ["--direct"]])
def test_refused_group_lock_fails_only_if_it_was_requested(lustre: Lustre, words: list[str]) -> None:
    """The failure is reported if the lock was requested; with --direct it is optional."""
    source, target = lustre.first / "file", lustre.second / "file"
    make(lustre, source, b"", 40 * MIB)
    reported = run(lustre, "-n", 2, *words, source, target, refuse=("grouplock",))
    assert reported.returncode == (1 if "--group-lock" in words else 0), show(reported)
    assert (b"group lock" in reported.stderr) == ("--group-lock" in words)


def test_group_lock_that_others_hold_is_not_waited_for_long(lustre: Lustre) -> None:
    """With --direct a file is written without the lock, after a short time."""
    source, target = lustre.first / "file", lustre.second / "file"
    make(lustre, source, b"", 40 * MIB)
    began = time.monotonic()
    done(lustre, "-n", 1, "--direct", "--chunk-size", "8M", source, target, refuse=("locked",))
    assert time.monotonic() - began < 30
    assert subprocess.run(["cmp", source, target], check=False).returncode == 0
    assert not lustre.events("grouplock")


def test_chunks_hold_whole_stripes(lustre: Lustre) -> None:
    source, target = lustre.first / "file", lustre.second / "file"
    make(lustre, source, b"", 96 * MIB)
    lustre.log.write_text("")
    done(lustre, "-n", 2, "--stripe", "2:16M", "--chunk-size", "4M", "--block-size", "1M", source, target)
    of_ranks = writers(lustre, target)
    assert all(number % (16 * MIB) == 0 for each in of_ranks.values() for number in each.values()), of_ranks


def test_checkpoint_syncs_all_servers(lustre: Lustre) -> None:
    """Also the metadata servers of other directories; the times of directories are unchanged."""
    source, target = lustre.first / "source", lustre.second / "target"
    for name in ("here", "there"):
        make(lustre, source / name / "file")
    target.mkdir()
    (target / "there").mkdir()
    os.setxattr(target / "there", SERVER, b"1")
    before = 10**18  # in whole seconds, as all times of Lustre are
    os.utime(lustre.second, ns=(before, before))
    done(lustre, "-T", source, target, mdts=2, ranks=1)
    synced = {event.numbers["ino"] for event in lustre.events("fsync")}
    laid = {event.numbers["ino"] for event in lustre.events("setlayout") if event.numbers["count"] == 8}
    assert len(synced & laid) >= 2
    assert lustre.second.stat().st_mtime_ns == before
    same(source, target)


def test_checkpoint_syncs_all_servers_of_a_striped_directory(lustre: Lustre) -> None:
    source, target = lustre.first / "source", lustre.second / "target"
    make(lustre, source / "file")
    target.mkdir()
    os.setxattr(target, SERVER, b"2,0,1")
    done(lustre, "-T", source, target, mdts=3, ranks=1)
    anchors = {event.numbers["ino"] for event in lustre.events("setlayout") if event.numbers["count"] == 8}
    names = [event.text for event in lustre.events("create") if event.numbers["ino"] in anchors]
    assert {name.split(":")[2] for name in names if "VOLATILE" in name} == {"0000", "0001", "0002"}
    assert len({event.numbers["ino"] for event in lustre.events("fsync")} & anchors) == 3
    same(source, target)


def test_sync_files_are_created_in_a_writable_directory_if_the_first_is_not(lustre: Lustre, area: Path) -> None:
    """Without a file on all servers each file would be synced separately; such a file cannot be created in the first
    directory."""
    require_root("another user copies")
    source, target = lustre.first / "source", lustre.second / "target"
    for number in range(30):
        make(lustre, source / "below" / str(number))
    (target / "below").mkdir(parents=True)
    for path in (target / "below", source, source / "below", *(source / "below").iterdir()):
        os.chown(path, NOBODY, NOBODY)
    done(lustre, "-n", 1, "--no-preserve", "mode,timestamps", "-T", source / "below", target / "below", user=NOBODY)
    lustre.log.write_text("")
    reported = done(lustre, "-n", 1, "-q", f"{source}/below", target, user=NOBODY)
    assert not reported.stderr, show(reported)
    assert len(lustre.events("fsync")) < 10
