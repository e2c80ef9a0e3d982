"""Writes docs/operations/fidelity.md: ``python -m tests.fidelity.matrix > docs/operations/fidelity.md``, as root.

The runs take their time, so that the page goes to standard output only when it is whole; nothing else is written.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fidelity.notes import note_for
from tests.fidelity.rows import Row
from tests.fidelity.runs import (
    COLUMNS,
    CP,
    EXCUSED,
    FAILS,
    HANGS,
    NO,
    NOTHING,
    RSYNC,
    YES,
    Column,
    all_rows,
    judged,
    version,
)
from tests.support.command import clean_up
from tests.support.filesystems import FileSystems, scratch
from tests.support.users import is_root

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "fidelity.md"

Cells = Mapping[Column, Mapping[str, str]]

INTRODUCTION = f"""\
# What arrives: the fidelity matrix

What a copy keeps of each item, with pcopy and with the two tools that people use otherwise. This page is written by a
test that makes every item, copies it with each tool, as root and as an ordinary user, and looks at the copy with
`stat`, `readlink`, `read` and `getxattr`. It fails when the page is not what it finds.

- `pcopy` stands for `pcopy SRC DST` without options: archive mode is the default.
- `cp -a`: {{cp}}; `rsync -aHAXS`: {{rsync}}; as Debian 12 has them.
- From ext4 to ext4, unless XFS or tmpfs is named, with umask 077.
- The ordinary user copies files of its own, and in a few rows those of others that it may read.

| word | meaning |
|---|---|
| {YES} | it arrives |
| {EXCUSED} | the user may not set it; counted in the summary, no failure |
| {FAILS} | it does not arrive; the tool names the item, and its exit status is not 0 |
| {NO} | it does not arrive, and the exit status doesn't tell |
| {HANGS} | the tool waits for ever |
| {NOTHING} | beyond any ordinary user, whatever the tool; so are the kinds that are marked "as root" |

Nothing can set an inode's number, its change time or its time of birth. Never copied on purpose, since it belongs to
the file system or the host: `security.ima`, `security.evm`, `lustre.*`, what Lustre, GlusterFS and XFS keep under
`trusted.*`, and what `/etc/xattr.conf` says to skip. An SELinux label that may not be set is told, and no failure.
"""

END = """
## How this page is made

```sh
python -m tests.fidelity.matrix > docs/operations/fidelity.md
```

as root, in a checkout with the packages of `bin/install-debian-packages tests`. Rows and their judges are in
`tests/fidelity`, the footnotes in its `notes.py`; `tests/fidelity/test_matrix.py` compares.
"""


def page(cells: Cells, cp: str, rsync: str) -> str:
    """The whole page, in Markdown; ``cp`` and ``rsync`` are their versions."""
    notes: dict[str, int] = {}
    parts = [INTRODUCTION.format(cp=cp, rsync=rsync)]
    for section in dict.fromkeys(row.section for row in all_rows()):
        rows = [row for row in all_rows() if row.section == section]
        parts.append(f"\n## {section}\n\n{_head()}\n")
        parts += [line + "\n" for line in _lines(rows, cells, notes)]
    parts.append("\n## Notes\n\n")
    parts += [f"[^{number}]: {text}\n" for text, number in notes.items()]
    parts.append(END)
    return "".join(parts)


def _head() -> str:
    titles = [f"{f'`{tool}`'} {'root' if root else 'user'}" for tool, root in COLUMNS]
    return f"| | {' | '.join(titles)} |\n|---|{'---|' * len(COLUMNS)}"


class Cell(NamedTuple):
    """A word, and the footnote that explains it."""

    word: str
    note: str


def _lines(rows: Sequence[Row], cells: Cells, notes: dict[str, int]) -> list[str]:
    """One line for all kinds of an attribute that have the same cells."""
    lines: dict[tuple[str, tuple[Cell, ...]], list[str]] = {}
    for row in rows:
        found = tuple(_explained(row, column, cells[column][row.key]) for column in COLUMNS)
        kind = row.kind
        like = next((key[1] for key in lines if key[0] == row.attribute and _same_for_root(key[1], found)), found)
        if row.root_only and like != found:
            found, kind = like, f"{kind} (as root)"
        lines.setdefault((row.attribute, found), []).append(kind)
    return [
        f"| {f'{attribute}: ' * any(kinds) or attribute}{', '.join(kinds)} | "
        f"{' | '.join(_shown(cell, notes) for cell in found)} |"
        for (attribute, found), kinds in lines.items()
    ]


def _explained(row: Row, column: Column, word: str) -> Cell:
    return Cell(word, "" if word == YES else note_for(row, column, word))


def _same_for_root(one: Sequence[Cell], other: Sequence[Cell]) -> bool:
    return all(a == b for column, a, b in zip(COLUMNS, one, other, strict=True) if column.root)


def _shown(cell: Cell, notes: dict[str, int]) -> str:
    return f"{cell.word}[^{notes.setdefault(cell.note, len(notes) + 1)}]" if cell.note else cell.word


def versions() -> tuple[str, str]:
    return version(CP), version(RSYNC)


def measure(systems: FileSystems) -> Cells:
    """All columns."""

    def on(kind: str) -> Path:
        path = Path(tempfile.mkdtemp(prefix="matrix-", dir=systems.point(kind)))
        path.chmod(0o755)
        return path

    return {column: judged(column, on) for column in COLUMNS}


def main() -> None:
    if not is_root():
        sys.exit("only root can make what the matrix compares")
    with scratch() as place:
        systems = FileSystems(place)
        try:
            cells = measure(systems)
        finally:
            systems.close()
            clean_up()
    sys.stdout.write(page(cells, *versions()))


if __name__ == "__main__":
    main()
