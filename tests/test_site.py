"""The documentation as a site: it builds without warnings, and reading it fetches nothing from the network."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "use": "href"}
"""Elements for which a browser fetches a file, and the attribute that names it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(line, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return place


class Fetched(HTMLParser):
    """Records the files that a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        reported = dict(attrs)
        if tag in LOADS and reported.get("rel") != "canonical":
            self.places += filter(None, [reported.get(LOADS[tag])])
        if tag == "a":
            self.links += filter(None, [reported.get("href")])


def read(page: Path) -> Fetched:
    fetched = Fetched()
    fetched.feed(page.read_text())
    return fetched


def test_site_contains_all_pages_and_fetches_nothing_remote(site: Path) -> None:
    sources = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    expected = {source.with_suffix(".html") for source in sources if source.parts[0] != "man"}
    expected |= {Path("readme.html"), Path("contributing.html"), Path("changelog.html")}
    assert {page.relative_to(site) for page in site.rglob("*.html")} - {Path("404.html")} == expected
    for page in expected:
        places = read(site / page).places
        assert len(places) > 3
        assert [place for place in places if place.startswith(("http:", "https:", "//"))] == []
        inside = [place.partition("?")[0].partition("#")[0] for place in places if not place.startswith("data:")]
        assert [place for place in inside if not (site / page.parent / place).exists()] == []
        assert [line for line in (site / page).read_text().splitlines() if "fonts.g" in line] == []


def test_links_in_and_outside_docs_lead_to_pages_of_the_site(site: Path) -> None:
    links = read(site / "readme.html").links
    assert {"changelog.html", "contributing.html", "operations/errors.html"} <= set(links)
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links start at the root of the site
            continue
        inside = [link.partition("#")[0] for link in read(page).links if "://" not in link]
        assert [link for link in inside if link and not (page.parent / link).exists()] == [], page
