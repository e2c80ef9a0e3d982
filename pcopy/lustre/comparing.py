"""Has a file the layout that was wanted? Lustre may give another one without an error."""

from __future__ import annotations

from collections.abc import Callable

from pcopy.lustre.blob import ALL, EXTENSION, INITIALISED, BadLayout, Component, Striping, describe, parse


def normal_of(blob: bytes) -> Striping:
    """What an attribute asks for; nothing in particular if it can't be read."""
    try:
        return parse(blob).normal
    except BadLayout:
        return Striping((Component(),))


def amiss(wanted: Striping, back: bytes) -> str:
    """Why the attribute ``back`` is not the layout that was wanted, or nothing."""
    got = normal_of(back)
    return "" if got == wanted else f"wanted: {describe(wanted)}; Lustre gave {describe(got)}"


def has_fewer(wanted: Striping, back: bytes) -> bool:
    """Return True if the attribute ``back`` is a layout of the wanted kind, but for fewer stripes, or none.

    Lustre gives that without an error, as for ``lfs setstripe``, where OSTs are full or take no new files.
    """
    got = normal_of(back)
    if got._replace(components=()) != wanted._replace(components=()) or len(got.components) != len(wanted.components):
        return False
    for one, each in zip(got.components, wanted.components, strict=True):
        is_kind = one == each._replace(stripes=one.stripes, size=each.size or one.size)
        if not is_kind or (one.stripes != each.stripes and not 0 < one.stripes < (each.stripes or ALL)):
            return False
    return True


def comes_from(striping: Striping, inherited: Striping, most_stripes: Callable[[bytes], int]) -> bool:
    """Is it what a file has that was made with the layout ``inherited``, and has grown since?

    A component with data says how many stripes it has got: fewer than wanted if its pool has no more OSTs, which
    ``most_stripes`` tells. Components that extend themselves have other extents.
    """
    if striping.normal == inherited:
        return True
    if not (striping.is_composite and inherited.is_composite) or striping.mirrors != inherited.mirrors:
        return False
    if any(each.flags & EXTENSION for each in inherited.components):
        return _pools_and_sizes(striping) == _pools_and_sizes(inherited)
    if len(striping.components) != len(inherited.components):
        return False
    for full, got, wanted in zip(striping.components, striping.normal.components, inherited.components, strict=True):
        has_fewer = full.flags & INITIALISED and got.stripes < wanted.stripes
        is_all = has_fewer and not 0 < wanted.stripes <= most_stripes(wanted.pool)
        if got != (wanted._replace(stripes=got.stripes) if is_all else wanted):
            return False
    return True


def _pools_and_sizes(striping: Striping) -> set[tuple[bytes, int]]:
    return {(each.pool, each.size) for each in striping.components}


def miscounted(wanted: Component, back: bytes, *, exactly: bool) -> str:
    """Why the attribute ``back`` has not the wanted number of stripes, or nothing. Unless ``exactly`` that is wanted,
    fewer will do: there may be fewer OSTs."""
    got = normal_of(back)
    one = got.plain
    fits = one is not None and wanted.size in (0, one.size)
    if one is not None and one.stripes != wanted.stripes:
        fits = fits and one.stripes < wanted.stripes and not exactly
    return "" if fits else amiss(Striping((wanted,)), back)
