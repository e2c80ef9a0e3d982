"""Comparison of the layout of a file with the requested layout, because Lustre may assign another one without an error.

A layout is read as the value of the extended attribute ``lustre.lov``; ``ParsedLayout`` is the parsed form.
"""

from __future__ import annotations

from collections.abc import Callable

from pcopy.lustre.blob import (
    ALL_OSTS,
    EXTENSION_FLAG,
    INITIALISED_FLAG,
    InvalidLayoutError,
    LayoutComponent,
    ParsedLayout,
    describe_layout,
    parse_layout,
)


def normalised_layout(blob: bytes) -> ParsedLayout:
    """Return the layout in ``blob``, the value of the extended attribute with a layout, without everything that differs
    from file to file (``ParsedLayout.normalised_layout``). If ``blob`` cannot be parsed, return a layout in which the
    file system chooses everything.
    """
    try:
        return parse_layout(blob).normalised_layout
    except InvalidLayoutError:
        return ParsedLayout((LayoutComponent(),))


def layout_deviation(wanted: ParsedLayout, back: bytes) -> str:
    """Return, for a message, how the layout of a file differs from the requested layout ``wanted`` (normalised); empty
    if it does not. ``back`` is the attribute value that was read from the file.
    """
    got = normalised_layout(back)
    return "" if got == wanted else f"wanted: {describe_layout(wanted)}; Lustre gave {describe_layout(got)}"


def has_fewer_stripes(wanted: ParsedLayout, back: bytes) -> bool:
    """Return True if the layout of a file is the requested layout ``wanted``, except that some components have fewer
    stripes than requested. ``back`` is the attribute value that was read from the file.

    A number of stripes or a stripe size that was not specified (0) may have any value. Lustre assigns a layout with
    fewer stripes without an error, as for ``lfs setstripe``, if OSTs are full or accept no new files.
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


def is_layout_derived_from(
    striping: ParsedLayout, inherited: ParsedLayout, most_stripes: Callable[[bytes], int]
) -> bool:
    """Return True if a file with the layout ``striping`` may have been created with the layout ``inherited``, even if
    the file has grown since.

    A component with data has its actual number of stripes, which is lower than the requested number if its pool has
    too few OSTs. Self-extending components have changed their extents, so only their pools and stripe sizes are
    compared.

    Args:
        striping: layout of the file.
        inherited: normalised layout that files inherit in its directory.
        most_stripes: returns the number of OSTs in a pool (given by name); 0 if it is unknown.
    """
    if striping.normalised_layout == inherited:
        return True
    if not (striping.is_composite and inherited.is_composite) or striping.mirrors != inherited.mirrors:
        return False
    if any(each.flags & EXTENSION_FLAG for each in inherited.components):
        return _pools_and_stripe_sizes(striping) == _pools_and_stripe_sizes(inherited)
    if len(striping.components) != len(inherited.components):
        return False
    for full, got, wanted in zip(
        striping.components, striping.normalised_layout.components, inherited.components, strict=True
    ):
        has_fewer = full.flags & INITIALISED_FLAG and got.stripes < wanted.stripes
        is_all = has_fewer and not 0 < wanted.stripes <= most_stripes(wanted.pool)
        if got != (wanted._replace(stripes=got.stripes) if is_all else wanted):
            return False
    return True


def _pools_and_stripe_sizes(striping: ParsedLayout) -> set[tuple[bytes, int]]:
    """Return the pool and the stripe size in bytes of each component, as a set of pairs."""
    return {(each.pool, each.stripe_size) for each in striping.components}


def stripe_count_deviation(wanted: LayoutComponent, back: bytes, *, exactly: bool) -> str:
    """Return, for a message, how the layout of a file differs from the requested component ``wanted`` in the number of
    stripes (and in the stripe size, if that of ``wanted`` is not 0); empty if it does not. ``back`` is the attribute
    value that was read from the file.

    If ``exactly`` is False, fewer stripes suffice, because there may be fewer OSTs.
    """
    got = normalised_layout(back)
    component = got.single_component
    fits = component is not None and wanted.stripe_size in (0, component.stripe_size)
    if component is not None and component.stripes != wanted.stripes:
        fits = fits and component.stripes < wanted.stripes and not exactly
    return "" if fits else layout_deviation(ParsedLayout((wanted,)), back)
