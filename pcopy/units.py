"""Parsing and formatting of sizes and time spans.

Rule for sizes that users write: ``K`` and ``KiB`` (likewise M, G, T) are powers of 1024, ``KB`` is a power of 1000.
Printed sizes are in powers of 1024, with units such as ``KiB``.
"""

from __future__ import annotations

_SIZE_LIMIT = 1 << 63
"""The smallest size in bytes that is refused: file offsets are signed 64-bit integers."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_BYTES_PER_UNIT = {"": 1, "b": 1}
"""How many bytes each unit stands for, by its name in lower case."""
for _power, _prefix in enumerate("kmgt", start=1):
    _BYTES_PER_UNIT[_prefix] = _BYTES_PER_UNIT[f"{_prefix}ib"] = 1024**_power
    _BYTES_PER_UNIT[f"{_prefix}b"] = 1000**_power


def parse_size(text: str) -> int:
    """Return the number of bytes of a size such as ``4096``, ``64K``, ``1.5 GiB`` or ``2TB``, rounded down.

    The case of letters is ignored. Raise ``ValueError`` for any other text, and for a size of 2**63 bytes or more.
    """
    number = text.strip().rstrip("BbKkMmGgTtIi")
    factor = _BYTES_PER_UNIT.get(text.strip()[len(number) :].lower())
    number = number.rstrip()
    if factor is None or not number.isascii() or not number.replace(".", "", 1).isdigit():
        raise ValueError("not a size (like 65536, 64K, 1.5G, 4MiB or 10MB)")
    if float(number) * factor >= 2 * _SIZE_LIMIT:  # before int(), which refuses texts with thousands of digits
        raise ValueError("more than any file can hold")
    size = float(number) * factor if "." in number else int(number) * factor
    if size >= _SIZE_LIMIT:
        raise ValueError("more than any file can hold")
    return int(size)


def format_size(count: float) -> str:
    """Return ``count`` bytes with about three digits and a unit: ``999 B``, ``1.50 KiB``, ``12.3 GiB``."""
    amount, power = float(count), 0
    while amount >= (999.5 if power else 1000) and power < len(_UNITS) - 1:
        amount /= 1024
        power += 1
    digits = 0 if not power or amount >= 99.95 else 1 if amount >= 9.995 else 2
    return f"{amount:.{digits}f} {_UNITS[power]}"


def format_seconds(seconds: float) -> str:
    """Return a time span: ``0.42 s`` or ``12.3 s`` below a minute, then ``m:ss``, ``h:mm:ss`` or ``2 d 03:04:05``."""
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    return format_running_clock(seconds)


def format_running_clock(seconds: float) -> str:
    """Return a time span as a running clock shows it: ``0:07``, ``12:34``, ``1:02:03``, ``2 d 03:04:05``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        days, hours = divmod(hours, 24)
        return f"{days} d {hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
