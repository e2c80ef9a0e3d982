"""Check whether Zensical, the successor of the site's theme, builds the same pages: ``python docs/check_zensical.py``.

It builds the site with MkDocs and with Zensical, both of this Python's environment (``pip install zensical``). Zensical
runs no hooks, so it builds a directory in which ``docs/site_pages.py`` has already corrected the pages. Differences of
the pages, and of the headings, links, footnotes, tables and code blocks of each page, are printed. The exit status is 1
if there are any.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs.site_pages import PAGES_OUTSIDE_DOCS, navigation, page_in_site  # noqa: E402

NO_PAGES = ("*.py", "*.json", "man", "__pycache__")


def prepare(directory: Path) -> None:
    """Write a project for Zensical: the pages as they are in the site, and the settings with the navigation."""
    docs = directory / "docs"
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns(*NO_PAGES))
    for name, uri in PAGES_OUTSIDE_DOCS.items():
        shutil.copy(ROOT / name, docs / uri)
    for page in docs.rglob("*.md"):
        uri = str(page.relative_to(docs))
        here = {page_uri: name for name, page_uri in PAGES_OUTSIDE_DOCS.items()}.get(uri, f"docs/{uri}")
        page.write_text(page_in_site(page.read_text(), here, uri, lambda target: (docs / target).is_file()))
    settings = (ROOT / "mkdocs.yml").read_text().splitlines()
    kept = [line for line in settings if not line.startswith("hooks:")]
    (directory / "mkdocs.yml").write_text("\n".join([*kept, f"nav: {navigation()}", ""]))


class Content(HTMLParser):
    """Counts the parts of the article of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.page = page
        self.parts: Counter[str] = Counter()
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._depth += tag == "article"
        if not self._depth:
            return
        if tag in ("h1", "h2", "h3", "h4"):
            self.parts[f"heading {values.get('id')}"] += 1
        elif tag in ("table", "pre", "img", "sup"):
            self.parts[tag] += 1
        elif tag == "a" and "headerlink" not in (values.get("class") or "").split():
            link = self._resolved(values.get("href") or "")
            if link != self.page:  # buttons of the themes lead to the page itself
                self.parts[f"link {link}"] += 1

    def _resolved(self, link: str) -> str:
        """Return the link relative to the root of the site."""
        path, mark, anchor = link.partition("#")
        if "://" not in link and path:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(self.page), path))
        return f"{path or self.page}{mark}{anchor}"

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "article"

    def handle_data(self, data: str) -> None:
        if self._depth and "[^" in data:
            self.parts["raw footnote"] += 1


def contents(site: Path) -> dict[str, Counter[str]]:
    """Return the parts of all pages of a site, by the path of the page."""
    found = {}
    for page in site.rglob("*.html"):
        content = Content(str(page.relative_to(site)))
        content.feed(page.read_text())
        if page.name != "404.html":
            found[content.page] = content.parts
    return found


def differences(ours: dict[str, Counter[str]], others: dict[str, Counter[str]]) -> list[str]:
    """Return the lines that name what only one of two sites has."""
    lines = [f"{page}: is missing" for page in ours.keys() - others.keys()]
    lines += [f"{page}: is only built by Zensical" for page in others.keys() - ours.keys()]
    for page in sorted(ours.keys() & others.keys()):
        lines += [f"{page}: missing: {part} ({number})" for part, number in (ours[page] - others[page]).items()]
        lines += [
            f"{page}: only in Zensical: {part} ({number})" for part, number in (others[page] - ours[page]).items()
        ]
    return lines


def main() -> int:
    """Build both sites, print the differences and return the exit status."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        prepare(place)
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        mkdocs = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(place / "ours")]
        subprocess.run(mkdocs, check=True, cwd=ROOT, env=environment)
        subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], check=True, cwd=place)
        lines = differences(contents(place / "ours"), contents(place / "site"))
    print("\n".join(lines) or "Zensical builds the same pages")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
