"""Parser and writer of the extended attribute ``lustre.lov``, the layout of a file or the default layout of a
directory.

A plain layout is a single component, which covers the whole file. A composite layout has several components, which
cover different extents of the file (PFL), or the same extent several times (mirrors). The numbers in the attribute are
little-endian; see lov_user_md_v1, lov_user_md_v3 and lov_comp_md_v1 in Lustre's lustre_user.h.
"""

from __future__ import annotations

import struct

from pcopy.fast_named_tuple import NamedTuple

V1_MAGIC, V3_MAGIC, SPECIFIC_MAGIC, COMPOSITE_MAGIC, FOREIGN_MAGIC = (
    0x0BD10BD0,
    0x0BD30BD0,
    0x0BD50BD0,
    0x0BD60BD0,
    0x0BD70BD0,
)
"""Magic numbers, which identify the types of layouts. ``SPECIFIC_MAGIC`` has the format of ``V3_MAGIC`` and lists its
OSTs; the data of a ``FOREIGN_MAGIC`` layout are not in Lustre.
"""

RAID0_PATTERN, MDT_PATTERN, OVERSTRIPED_FLAG, RELEASED_FLAG = 1, 0x100, 0x200, 0x80000000
"""Patterns of a component, which say where its data are: ``RAID0_PATTERN`` on OSTs, ``MDT_PATTERN`` on the MDT.
``OVERSTRIPED_FLAG`` (several stripes on one OST) and ``RELEASED_FLAG`` (the data are only in an archive of HSM) are
flags that are added to ``RAID0_PATTERN``.
"""

STALE_FLAG, INITIALISED_FLAG, EXTENSION_FLAG = 1, 0x10, 0x40
"""Flags of a component. ``STALE_FLAG``: it is part of a mirror that is out of date. ``INITIALISED_FLAG``: its objects
exist on OSTs. ``EXTENSION_FLAG``: it is not used for data, but extends the component before it (self-extending layout).
"""

END_OF_FILE = 2**64 - 1
"""Value of ``LayoutComponent.end`` for a component that extends to the end of the file."""
ALL_OSTS = 0xFFFF
"""Special value. As the number of stripes: one on each OST. As the index of the first OST: the server chooses it."""

NO_POOL = b"ignore"
"""Pool name that means "in no pool". Without it a file would inherit the pool of the directory's default layout.

Older Lustre versions may not know it.
"""

_PLAIN_FORMAT = struct.Struct("<II16xIHH")
_POOL_FORMAT = struct.Struct("<16s")
_OBJECT_FORMAT = struct.Struct("<20xI")
_COMPOSITE_FORMAT = struct.Struct("<IIIHHH14x")
_COMPONENT_FORMAT = struct.Struct("<IIQQII16x")
_MAX_COMPONENTS = 1024
"""Maximum number of components: a layout with more, which no real file has, is taken as invalid."""


class InvalidLayoutError(ValueError):
    """Error for bytes that are not a layout, or a layout of an unknown type. The text is the reason."""


class LayoutComponent(NamedTuple):
    """One component of a layout: the bytes from ``start`` to ``end`` of the file.

    Fields:
        stripes: number of stripes; ``ALL_OSTS`` for one on each OST, 0 if the file system chooses.
        stripe_size: number of bytes of a stripe; 0 if the file system chooses.
        pattern: ``RAID0_PATTERN`` or ``MDT_PATTERN``, with flags.
        pool: name of the OST pool; empty for none.
        first_ost: index of the first OST; ``ALL_OSTS`` if the server chooses.
        osts: indices of the OSTs of its objects; empty if it has no objects.
        start: offset of the first byte of its extent.
        end: offset of the first byte behind its extent.
        flags: sum of ``STALE_FLAG``, ``INITIALISED_FLAG`` and ``EXTENSION_FLAG``.
        component_id: id of the component within the file.
    """

    stripes: int = 0
    stripe_size: int = 0
    pattern: int = RAID0_PATTERN
    pool: bytes = b""
    first_ost: int = ALL_OSTS
    osts: tuple[int, ...] = ()
    start: int = 0
    end: int = END_OF_FILE
    flags: int = 0
    component_id: int = 0


class ParsedLayout(NamedTuple):
    """A layout of a file or directory, parsed. It has one component unless it is composite.

    ``mirrors`` is the number of copies of the whole file; 1: it is not mirrored. ``generation`` and ``state`` are
    fields of the attribute that Lustre maintains.
    """

    components: tuple[LayoutComponent, ...]
    is_composite: bool = False
    mirrors: int = 1
    generation: int = 0
    state: int = 0

    @property
    def single_component(self) -> LayoutComponent | None:
        """The only component of a plain layout; None for a composite one."""
        return None if self.is_composite else self.components[0]

    @property
    def normalised_layout(self) -> ParsedLayout:
        """The layout without everything that may differ between files which were created with the same request:
        objects, first OSTs, generations, states, ids, and whether the data exist.

        Two layouts are compared in this form. A component on the MDT has no pool in it, even if the attribute names
        one.
        """
        return ParsedLayout(
            tuple(
                each._replace(
                    pattern=each.pattern & ~RELEASED_FLAG,
                    pool=b"" if each.pattern & MDT_PATTERN or each.pool == NO_POOL else each.pool,
                    first_ost=ALL_OSTS,
                    osts=(),
                    flags=each.flags & ~(INITIALISED_FLAG | STALE_FLAG),
                    component_id=0,
                )
                for each in self.components
            ),
            self.is_composite,
            self.mirrors,
        )

    @property
    def layout_without_inherited_pool(self) -> ParsedLayout:
        """The layout that must be requested so that a file gets this one in a directory whose default layout has a
        pool.

        Components without a pool would inherit that pool, so they get ``NO_POOL``.
        """
        return self._replace(
            components=tuple(
                each if each.pool or each.pattern & MDT_PATTERN else each._replace(pool=NO_POOL)
                for each in self.components
            )
        )

    @property
    def largest_stripe_size(self) -> int:
        """The largest stripe size of the components, in bytes; only sizes that are a power of two count; 0 if there is
        none.
        """
        sizes = (each.stripe_size for each in self.components if not each.flags & EXTENSION_FLAG)
        return max((size for size in sizes if size & (size - 1) == 0), default=0)

    @property
    def bytes_on_mdt(self) -> int:
        """Number of bytes of the file that are stored on its MDT."""
        return sum(each.end - each.start for each in self.components if each.pattern & MDT_PATTERN)

    @property
    def pools(self) -> frozenset[bytes]:
        """Names of the pools of all components."""
        return frozenset(each.pool for each in self.components if each.pool)


def parse_layout(blob: bytes) -> ParsedLayout:
    """Return the layout in ``blob``, the value of the extended attribute with a layout. Raise ``InvalidLayoutError`` if
    it cannot be parsed.
    """
    try:
        if _read_magic(blob, 0) != COMPOSITE_MAGIC:
            return ParsedLayout((_parse_plain_layout(blob, 0, len(blob)),))
        _, size, generation, state, entries, more_mirrors = _COMPOSITE_FORMAT.unpack_from(blob)
        if not 0 < entries <= _MAX_COMPONENTS or size > len(blob):
            raise InvalidLayoutError(
                f"the header of a layout of {len(blob)} bytes is invalid: {entries} components in {size} bytes"
            )
        components = tuple(
            _parse_composite_layout_entry(blob, _COMPOSITE_FORMAT.size + index * _COMPONENT_FORMAT.size)
            for index in range(entries)
        )
    except struct.error as error:
        raise InvalidLayoutError(f"a layout of {len(blob)} bytes is cut short") from error
    return ParsedLayout(components, True, more_mirrors + 1, generation, state)


def pack_layout(striping: ParsedLayout) -> bytes:
    """Return the value of the extended attribute with which setxattr(2) requests the layout ``striping``. It contains
    no objects, because the server chooses the OSTs.
    """
    if not striping.is_composite:
        return _pack_layout_component(striping.components[0])
    bodies = [_pack_layout_component(component) for component in striping.components]
    offset = _COMPOSITE_FORMAT.size + _COMPONENT_FORMAT.size * len(bodies)
    entries = b""
    for number, (component, body) in enumerate(zip(striping.components, bodies, strict=True), 1):
        flags = component.flags & ~(INITIALISED_FLAG | STALE_FLAG)
        entries += _COMPONENT_FORMAT.pack(
            component.component_id or number, flags, component.start, component.end, offset, len(body)
        )
        offset += len(body)
    head = _COMPOSITE_FORMAT.pack(
        COMPOSITE_MAGIC, offset, striping.generation, striping.state, len(bodies), striping.mirrors - 1
    )
    return head + entries + b"".join(bodies)


def layout_without_released_flag(blob: bytes) -> bytes:
    """Return ``blob``, the value of the extended attribute with a layout, without the flags of a released file (whose
    data are only in an archive of HSM), to request the same layout for a file with data.

    Raise ``InvalidLayoutError`` if ``blob`` is not a layout.
    """
    changed = bytearray(blob)
    offsets = [0]
    if _read_magic(blob, 0) == COMPOSITE_MAGIC:
        entries = _COMPOSITE_FORMAT.unpack_from(blob)[4]
        offsets = [
            _COMPONENT_FORMAT.unpack_from(blob, _COMPOSITE_FORMAT.size + index * _COMPONENT_FORMAT.size)[4]
            for index in range(entries)
        ]
    for offset in offsets:
        pattern = int.from_bytes(changed[offset + 4 : offset + 8], "little") & ~RELEASED_FLAG
        changed[offset + 4 : offset + 8] = pattern.to_bytes(4, "little")
    return bytes(changed)


def describe_layout(striping: ParsedLayout) -> str:
    """Return a short description of the layout ``striping`` for the user, such as ``8 stripes of 4 MiB``."""
    if not striping.is_composite:
        return _layout_component_text(striping.components[0])
    starts = [number for number, each in enumerate(striping.components) if each.start == 0]
    mirrors = max(striping.mirrors, 1)
    parts = striping.components[: starts[1] if mirrors > 1 and len(starts) > 1 else None]
    text = (
        ", ".join(f"{_component_end_text(each)} {_layout_component_text(each)}" for each in parts)
        if len(parts) > 1
        else _layout_component_text(parts[0])
    )
    if mirrors > 1:
        return f"{mirrors} mirrors ({text})"
    return text if starts else f"({text})"


def _component_end_text(component: LayoutComponent) -> str:
    """Return where ``component`` ends, as a part of the description of a layout: ``to SIZE``, or ``then`` for the last
    component.
    """
    return "then" if component.end == END_OF_FILE else f"to {_size_text(component.end)}"


def _size_text(number: int) -> str:
    """Return a number of bytes as text for the user, in the largest unit (B to TiB) of which it is a whole multiple."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >> power and not number & ((1 << power) - 1):
            return f"{number >> power} {unit}"
    return f"{number} B"


def _layout_component_text(component: LayoutComponent) -> str:
    """Return the description of one component, without the bytes that it covers, as a part of the description of a
    layout.
    """
    if component.pattern & MDT_PATTERN:
        return "on the MDT"
    count = "all OSTs" if component.stripes == ALL_OSTS else f"{component.stripes or 'default'}"
    stripes = "stripe" if component.stripes == 1 else "stripes"
    text = count if component.stripes == ALL_OSTS else f"{count} {stripes}"
    if component.stripe_size:  # of a self-extending component it is the step of the extension, in KiB
        unit = 1024 if component.flags & EXTENSION_FLAG else 1
        text += f" of {_size_text(component.stripe_size * unit)}"
    if component.pattern & OVERSTRIPED_FLAG:
        text += ", overstriped"
    if component.flags & EXTENSION_FLAG:
        text += ", extending itself"
    if component.pool:
        text += f" in the pool {component.pool.decode('ascii', 'backslashreplace')}"
    return text


def _read_magic(blob: bytes, at: int) -> int:
    """Return the magic number, which shows the type, of the layout at the offset ``at`` of ``blob``. Raise
    ``InvalidLayoutError`` if it is unknown.
    """
    magic = int.from_bytes(blob[at : at + 4], "little")
    if magic == FOREIGN_MAGIC:
        raise InvalidLayoutError("the data of the file are not in Lustre (a foreign layout)")
    if magic not in (V1_MAGIC, V3_MAGIC, SPECIFIC_MAGIC, COMPOSITE_MAGIC):
        raise InvalidLayoutError(f"unknown type of layout (0x{magic:08x})")
    return magic


def _parse_plain_layout(blob: bytes, at: int, end: int) -> LayoutComponent:
    """Return the component that the plain layout from the offset ``at`` to ``end`` of ``blob`` describes, with its
    objects. Raise ``InvalidLayoutError``.
    """
    magic = _read_magic(blob, at)
    if magic == COMPOSITE_MAGIC:
        raise InvalidLayoutError("a component of a composite layout must not be composite itself")
    _, pattern, size, count, offset = _PLAIN_FORMAT.unpack_from(blob, at)
    at += _PLAIN_FORMAT.size
    pool = b""
    if magic != V1_MAGIC:
        pool = _POOL_FORMAT.unpack_from(blob, at)[0].partition(b"\0")[0]
        at += _POOL_FORMAT.size
    objects = min(count, (min(end, len(blob)) - at) // _OBJECT_FORMAT.size) if count != ALL_OSTS else 0
    osts = tuple(
        _OBJECT_FORMAT.unpack_from(blob, at + index * _OBJECT_FORMAT.size)[0] for index in range(max(0, objects))
    )
    return LayoutComponent(count, size, pattern, pool, offset, osts)


def _parse_composite_layout_entry(blob: bytes, at: int) -> LayoutComponent:
    """Return one component of the composite layout ``blob``. Its entry in the layout's list of components is at the
    offset ``at``. Raise ``InvalidLayoutError``.
    """
    number, flags, start, end, offset, size = _COMPONENT_FORMAT.unpack_from(blob, at)
    if offset + size > len(blob) or start > end:
        raise InvalidLayoutError(
            f"a component is invalid: start {start} exceeds end {end}, or its data at offset {offset} exceed the layout"
        )
    inner = _parse_plain_layout(blob, offset, offset + size)
    osts = inner.osts if flags & INITIALISED_FLAG else ()
    return inner._replace(osts=osts, start=start, end=end, flags=flags, component_id=number)


def _pack_layout_component(component: LayoutComponent) -> bytes:
    """Return the bytes of a plain layout that requests ``component``."""
    magic = V3_MAGIC if component.pool else V1_MAGIC
    pattern = component.pattern & ~RELEASED_FLAG
    head = _PLAIN_FORMAT.pack(magic, pattern, component.stripe_size, component.stripes, component.first_ost)
    return head + (_POOL_FORMAT.pack(component.pool) if component.pool else b"")
