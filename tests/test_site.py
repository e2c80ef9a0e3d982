"""The documentation as a site: it builds without warnings, and reading it fetches nothing from the network.

Chromium reads pages as files and from a web server (with PCOPY_TESTS=all, all of them). The tests check their layout at
the widths of a notebook and of a phone, and the results of the search.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser, started_browser
from tests.support.extent import everything, in_turn

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


WIDTHS = (1280, 390)
"""Pixels of a notebook and of a phone."""

TABLES_IN_BOXES = """document.querySelectorAll('article table').length ===
  document.querySelectorAll('article .md-typeset__scrollwrap table').length"""
"""True when a script of the theme has put each table into a box that scrolls."""

SERVED = ("comparison.html", "index.html", "install.html", "operations/fidelity.html", "performance.html")
"""Pages that are always read, both as files, in light colours, and from a web server, in dark colours."""

READ_IN_TURN = 15
"""How many of all pages are read as files in a run. With PCOPY_TESTS=all each page is read in both ways."""

RAW_MARKUP = re.compile(r"\[\^|(?<!\d)\*\*|\|---|\| ---|^!!! |^#+ |\]\(|<!--|^```", re.MULTILINE)
"""Markdown that was not converted, in the text of a page."""

FIRST_RESULTS = {
    "--bwlimit": "operations/limits.html",
    "--bwlimit=500M": "operations/limits.html",
    "--dry-run": "operations/dry_run.html",
    "throttle": "operations/limits.html",
    "bandwidth": "operations/limits.html",
    "resume": "howto/resume.html",
    "exclude": "operations/filters.html",
    "--exclude": "operations/filters.html",
    "No space left on device": "operations/troubleshooting.html",
    "pcopy: /archive/f: write: No space left on device": "operations/troubleshooting.html",
    "uninstall": "install.html",
    "hpc": "install.html",
    "conda": "install.html",
    "ensurepip is not available": "install.html",
    "faq": "operations/troubleshooting.html",
    "externally-managed-environment": "install.html",
    "slurm": "operations/batch.html",
    "exit status": "operations/errors.html",
    "hard links": "operations/fidelity.html",
}
"""Queries, and the page that the search must list first."""

LAYOUT = """(() => {
  const article = document.querySelector("article");
  const prose = article.cloneNode(true);
  prose.querySelectorAll("pre, code, script, style").forEach((element) => element.remove());
  const tables = [...article.querySelectorAll("table")];
  const boxes = tables.map((table) => table.closest(".md-typeset__scrollwrap").getBoundingClientRect());
  return {
    scheme: document.body.dataset.mdColorScheme,
    code: article.querySelectorAll("pre").length,
    width: document.documentElement.scrollWidth,
    text: prose.textContent,
    hidden_columns: tables.flatMap((table, number) => {
      const cells = [...table.rows[0].cells].slice(0, 2);
      return cells.some((cell) => cell.getBoundingClientRect().right > boxes[number].right + 1)
        ? [table.rows[0].innerText] : [];
    }),
    thin_headings: [...article.querySelectorAll("h1, h2, h3, h4")]
      .filter((heading) => getComputedStyle(heading).fontWeight < 400).length,
    cut_commands: [...article.querySelectorAll(".language-sh code")]
      .filter((code) => code.scrollWidth > code.clientWidth + 1).map((code) => code.textContent),
    pictures: [...article.querySelectorAll("img")].filter((picture) => !picture.naturalWidth).map((it) => it.src),
  };
})()"""
"""What a browser shows of a page: a script."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves the site without a log."""

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server(site: Path) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def pages_of(site: Path) -> list[str]:
    return sorted(str(page.relative_to(site)) for page in site.rglob("*.html") if page.name != "404.html")


def faults_of_page(browser: Browser, base: str, page: str, scheme: str) -> list[str]:
    """Open the page at the first width, show it at the other one, too, and return its faults."""
    browser.show_at(WIDTHS[0], scheme)
    browser.open(f"{base}/{page}")
    browser.wait_until(TABLES_IN_BOXES)
    faults = []
    for width in WIDTHS:
        browser.show_at(width, scheme)
        shown = browser.value(LAYOUT)
        if shown["scheme"] != {"light": "default", "dark": "slate"}[scheme]:
            faults.append(f"has the scheme {shown['scheme']} where the reader prefers {scheme}")
        if shown["width"] > width:
            faults.append(f"is {shown['width']} pixels wide at {width}")
        faults += [
            f"at {width}: {name}: {shown[name]}"
            for name in ("hidden_columns", "thin_headings", "cut_commands", "pictures")
            if shown[name]
        ]
        faults += [
            f"raw markup: {shown['text'][found.start() - 20 : found.end() + 40]!r}"
            for found in RAW_MARKUP.finditer(shown["text"])
        ]
    faults += browser.complaints()
    faults += [f"requests {url}" for url in browser.requested() if not url.startswith((f"{base}/", "data:"))]
    return [f"{page}: {fault}" for fault in faults]


def test_pages_fit_and_have_no_raw_markup_errors_or_requests_to_other_hosts(
    site: Path, server: str, browser: Browser
) -> None:
    faults = []
    for page in sorted({*SERVED, *in_turn(pages_of(site), READ_IN_TURN, "pages of the site")}):
        faults += faults_of_page(browser, f"file://{site}", page, "light")
        if page in SERVED or everything():
            faults += faults_of_page(browser, server, page, "dark")
    assert faults == [], "\n".join(faults)


def test_check_of_the_layout_finds_each_fault(browser: Browser, server: str) -> None:
    """Faults are put into a page that has none."""
    browser.show_at(390)
    browser.open(f"{server}/comparison.html")
    browser.wait_until(TABLES_IN_BOXES)
    browser.value("""(() => {
      const article = document.querySelector("article");
      article.insertAdjacentHTML("beforeend", `<p>raw[^1] and **bold**</p><h2 style="font-weight: 300">thin</h2>
        <div class="language-sh"><pre><code style="white-space: pre">${"word ".repeat(99)}</code></pre></div>
        <img src="none.svg"><div style="width: 500px; height: 9px"></div>`);
      document.querySelector("table").rows[0].cells[0].style.minWidth = "380px";
      console.error("an error");
      fetch("http://127.0.0.2:1/").catch(() => {});
    })()""")
    shown = browser.wait_until(f"(shown => shown.pictures.length && shown)({LAYOUT})")
    assert shown["width"] > 390
    assert len(shown["hidden_columns"]) == 1
    assert shown["thin_headings"] == 1
    assert [text.strip()[:4] for text in shown["cut_commands"]] == ["word"]
    assert [found[0] for found in RAW_MARKUP.finditer(shown["text"])] == ["[^", "**", "**"]
    assert any("an error" in fault for fault in browser.complaints())
    assert any(url.startswith("http://127.0.0.2") for url in browser.requested())


DRAWN = sorted(picture for picture in (ROOT / "docs").rglob("*.svg") if picture.name not in ("run.svg", "favicon.svg"))


@pytest.mark.parametrize("picture", DRAWN, ids=lambda picture: str(picture.relative_to(ROOT)))
def test_pictures_have_no_background_and_colours_for_dark_pages(picture: Path) -> None:
    text = picture.read_text()
    width = re.search(r"viewBox='0 0 (\d+) ", text)
    assert width
    assert f"<rect width='{width[1]}'" not in text
    assert "@media (prefers-color-scheme: dark)" in text


META = "document.querySelector('.md-search-result__meta').textContent.trim()"
FIRST_RESULT = "document.querySelector('.md-search-result__item a').href"


def found_first(browser: Browser, query: str) -> str:
    """Enter a query, and return the address of the first result."""
    enter = "(text) => { const box = document.querySelector('[data-md-component=search-query]'); box.value = text;"
    enter += " box.dispatchEvent(new KeyboardEvent('keyup')); }"
    browser.value(f"({enter})('')")
    browser.wait_until(f"{META}.startsWith('Type')")
    browser.value(f"({enter})({json.dumps(query)})")
    browser.wait_until(f"/matching/.test({META})")
    assert not browser.value(META).startswith("No "), query
    first: str = browser.value(FIRST_RESULT)
    return first.partition("?")[0].partition("#")[0]


@pytest.mark.parametrize("protocol", ["file", "http"])
def test_search_finds_options_messages_and_tasks(site: Path, server: str, browser: Browser, protocol: str) -> None:
    base = f"file://{site}" if protocol == "file" else server
    browser.show_at(WIDTHS[0])
    browser.open(f"{base}/tutorial.html")
    browser.value("document.querySelector('[data-md-component=search-query]').focus()")
    found = {query: found_first(browser, query).removeprefix(f"{base}/") for query in FIRST_RESULTS}
    assert found == FIRST_RESULTS
    assert browser.complaints() == []
