"""Comparison of the layout of a file with the requested one. Lustre may assign another layout without an error."""

from __future__ import annotations

from collections.abc import Callable

from pcopy.lustre.blob import (
    ALL_OSTS,
    EXTENSION,
    INITIALISED,
    Component,
    InvalidLayout,
    Striping,
    describe_layout,
    parse_layout,
)


def normalised_layout(blob: bytes) -> Striping:
    """Return the layout that the attribute ``blob`` requests; the default one if it cannot be parsed."""
    try:
        return parse_layout(blob).normalised
    except InvalidLayout:
        return Striping((Component(),))


def layout_deviation(wanted: Striping, back: bytes) -> str:
    """Return the difference between the layout ``wanted`` and the attribute ``back``, in words; empty if there is
    none.
    """
    got = normalised_layout(back)
    return "" if got == wanted else f"wanted: {describe_layout(wanted)}; Lustre gave {describe_layout(got)}"


def has_fewer_stripes(wanted: Striping, back: bytes) -> bool:
    """Return True if the layout ``back`` is like ``wanted``, except that it has fewer stripes, or that its number of
    stripes was not specified.

    Lustre assigns such a layout without an error, as for ``lfs setstripe``, if OSTs are full or accept no new files.
    """
    got = normalised_layout(back)
    if got._replace(components=()) != wanted._replace(components=()) or len(got.components) != len(wanted.components):
        return False
    for actual, requested in zip(got.components, wanted.components, strict=True):
        is_kind = actual == requested._replace(
            stripes=actual.stripes, stripe_size=requested.stripe_size or actual.stripe_size
        )
        if not is_kind or (
            actual.stripes != requested.stripes and not 0 < actual.stripes < (requested.stripes or ALL_OSTS)
        ):
            return False
    return True


def is_derived_from(striping: Striping, inherited: Striping, most_stripes: Callable[[bytes], int]) -> bool:
    """Return True if a file with this ``striping`` was created with the layout ``inherited`` and may have grown since.

    A component with data has its actual number of stripes. That is lower than the requested one if its pool has no more
    OSTs. Self-extending components have other extents than at first.

    Args:
        striping: layout of the file.
        inherited: layout that files inherit in its directory.
        most_stripes: returns the number of OSTs in a pool; 0 if it is unknown.
    """
    if striping.normalised == inherited:
        return True
    if not (striping.is_composite and inherited.is_composite) or striping.mirrors != inherited.mirrors:
        return False
    if any(each.flags & EXTENSION for each in inherited.components):
        return _pools_and_sizes(striping) == _pools_and_sizes(inherited)
    if len(striping.components) != len(inherited.components):
        return False
    for full, got, wanted in zip(
        striping.components, striping.normalised.components, inherited.components, strict=True
    ):
        has_fewer = full.flags & INITIALISED and got.stripes < wanted.stripes
        is_all = has_fewer and not 0 < wanted.stripes <= most_stripes(wanted.pool)
        if got != (wanted._replace(stripes=got.stripes) if is_all else wanted):
            return False
    return True


def _pools_and_sizes(striping: Striping) -> set[tuple[bytes, int]]:
    """Return the pool and stripe size of each component."""
    return {(each.pool, each.stripe_size) for each in striping.components}


def stripe_count_deviation(wanted: Component, back: bytes, *, exactly: bool) -> str:
    """Return why the attribute ``back`` does not have the wanted number of stripes; empty if it has.

    Unless ``exactly`` is True fewer stripes suffice, because there may be fewer OSTs.
    """
    got = normalised_layout(back)
    component = got.single_component
    fits = component is not None and wanted.stripe_size in (0, component.stripe_size)
    if component is not None and component.stripes != wanted.stripes:
        fits = fits and component.stripes < wanted.stripes and not exactly
    return "" if fits else layout_deviation(Striping((wanted,)), back)
