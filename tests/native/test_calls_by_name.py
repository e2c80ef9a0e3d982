"""Each call of the C sources that changes an item by its name is in the table of docs/design/kernel.md."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
BY_NAME = re.compile(
    r"\b(unlinkat|renameat2?|linkat|symlinkat|mkdirat|mknodat|fchmodat2?|SYS_fchmodat2|fchownat|utimensat|l?setxattr"
    r"|l?removexattr|chmod|l?chown|unlink|rename|rmdir)(?=[(,])"
)
ROW = re.compile(r"^\| `(\w+\.[ch])` \| `(\w+)` \| (\d+) \| [^|]+ \|$", re.MULTILINE)


def test_every_change_by_name_is_in_the_table() -> None:
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted((ROOT / "pcopy/fsio/kernel/native").glob("*.[ch]")):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        found.update((path.name, match[1]) for match in BY_NAME.finditer(text))
    page = (ROOT / "docs/design/kernel.md").read_text()
    assert {(file, call): int(number) for file, call, number in ROW.findall(page)} == found
