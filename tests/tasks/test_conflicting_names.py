"""Look-ups of conflicting names above long paths."""

from __future__ import annotations

from pcopy.archive.member import NumberPairs
from pcopy.tasks.archive.names import ConflictingNames

ALWAYS = NumberPairs.from_pairs([(0, 1 << 40)])
DEEP = b"/".join([b"d"] * 20_000)


def conflicts_with(*paths: bytes) -> ConflictingNames:
    conflicts = ConflictingNames()
    for path in paths:
        conflicts[path] = ALWAYS
    return conflicts


def test_directory_is_affected_by_itself_and_by_those_above_it() -> None:
    for path, affected in {
        b"a": True,
        b"b/c": True,
        b"b/c/d/e": True,
        b"b": False,
        b"ab/c": False,
        b"b/cd": False,
    }.items():
        assert conflicts_with(b"a", b"b/c").may_affect(path, (), ()) == affected, path


def test_directory_is_affected_by_names_in_it() -> None:
    conflicts = conflicts_with(b"a/b", b"c")
    assert conflicts.may_affect(b"a", [b"x", b"b"], ())
    assert conflicts.may_affect(b"", [b"c"], ())
    assert not conflicts.may_affect(b"", [b"b"], ())


class CountingNames(ConflictingNames):
    """Counts the paths that are looked up."""

    looked_up = 0

    def __contains__(self, path: object) -> bool:
        self.looked_up += 1
        return super().__contains__(path)


def test_few_of_the_directories_above_a_long_path_are_looked_up() -> None:
    conflicts = CountingNames()
    assert not conflicts.may_affect(DEEP, (), ())
    conflicts[b"x"] = conflicts[b"d/d/x"] = conflicts[b"y"] = ALWAYS
    assert not conflicts.may_affect(DEEP, (), ())
    assert 1 <= conflicts.looked_up < 10
    conflicts[b"d/d/d"] = ALWAYS
    assert conflicts.may_affect(DEEP, (), ())
