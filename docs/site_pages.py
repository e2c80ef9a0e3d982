"""A hook of MkDocs that builds the navigation from docs/index.md, adds pages from outside of docs, and corrects links.

Each heading of the index becomes a tab of the site, with the pages of the list below it. The index also includes parts
of README.md, where it has comments such as ``<!-- README.md: Examples -->``. In the repository each link leads to a
file, so that any viewer can follow it. In the site, README.md is readme.html; the text of a link to a file that is no
page of the site, such as code, is kept without the link.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES_OUTSIDE_DOCS = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository outside of docs that become pages, and their names in the site."""
SEARCH_FACTORS = {"reference/": 0.1, "formats/": 0.1, "design/": 0.03, "contributing.md": 0.03, "changelog.md": 0.03}
"""Pages that a search lists after pages for users: the beginnings of their paths, and the factors of their scores."""

_INCLUDED = re.compile(r"<!-- README\.md: ([^>]+) -->")
"""A comment that is replaced by a part of README.md."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)")
"""A link or a picture in Markdown that leads to a file, with an optional anchor."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation."""
    config.nav = navigation()
    return config


def navigation() -> list[dict[str, object]]:
    """Return the navigation: the home page, then a tab for each list of pages in the index."""
    index = (ROOT / "docs" / "index.md").read_text()
    tabs: list[dict[str, object]] = [{"Home": "index.md"}]
    for section in index.split("\n## ")[1:]:
        links = [(words, site_path("docs/index.md", target)) for _, words, target, _ in _LINK.findall(section)]
        tabs.append({section.partition("\n")[0]: [{words: uri} for words, uri in links]})
    return tabs


def site_path(here: str, target: str) -> str:
    """Return the path in the site of the page to which ``target`` leads in the repository's file ``here``."""
    name = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    return PAGES_OUTSIDE_DOCS.get(name, name.removeprefix("docs/"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs."""
    from mkdocs.structure.files import File

    for name, uri in PAGES_OUTSIDE_DOCS.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page as it is in the site, and set its rank among the results of a search."""
    uri = page.file.src_uri
    for beginning, factor in SEARCH_FACTORS.items():
        if uri.startswith(beginning):
            page.meta["search"] = {"boost": factor}
    here = {page_uri: name for name, page_uri in PAGES_OUTSIDE_DOCS.items()}.get(uri, f"docs/{uri}")
    return page_in_site(markdown, here, uri, lambda target: files.get_file_from_path(target) is not None)


def page_in_site(markdown: str, here: str, uri: str, is_in_site: Callable[[str], bool]) -> str:
    """Return the text of the page ``uri`` of the site, whose source is the file ``here`` of the repository.

    ``is_in_site`` returns True for the paths of pages and pictures of the site.
    """

    def included(comment: re.Match[str]) -> str:
        return with_site_links(readme_part(comment[1]), "README.md", uri, is_in_site)

    corrected = with_site_links(markdown, here, uri, is_in_site)
    return with_four_space_indents(_INCLUDED.sub(included, corrected))


def readme_part(name: str) -> str:
    """Return the beginning of README.md without its title, up to ``## Install``, or a section of it."""
    readme = (ROOT / "README.md").read_text()
    if name == "beginning":
        return readme.partition("\n")[2].partition("\n## Install")[0].strip()
    section = re.search(rf"^## {re.escape(name)}\n.*?(?=^## |\Z)", readme, re.MULTILINE | re.DOTALL)
    if section is None:
        raise ValueError(f"README.md has no section {name!r}, which docs/index.md includes")
    return section[0].strip()


def with_site_links(markdown: str, here: str, uri: str, is_in_site: Callable[[str], bool]) -> str:
    """Return ``markdown`` from the file ``here`` with the links that it needs in the page ``uri``."""

    def corrected(link: re.Match[str]) -> str:
        picture, words, target, anchor = link.groups()
        there = site_path(here, target)
        if not is_in_site(there):
            exists = (ROOT / posixpath.dirname(here) / target).exists()
            return words if exists else link[0]  # MkDocs warns about a link to a missing file
        shorter = posixpath.relpath(there, posixpath.dirname(uri) or ".")
        return f"{picture}[{words}]({shorter}{anchor or ''})"

    return _LINK.sub(corrected, markdown)


def with_four_space_indents(markdown: str) -> str:
    """Return the page with the contents of list items indented by four spaces, as MkDocs requires.

    Other viewers accept two or three spaces, which the repository's pages have.
    """
    lines = []
    in_list = False
    for line in markdown.split("\n"):
        if line[:1].strip():
            in_list = re.match(r"[-*] |\d+\. ", line) is not None
        indented = re.match(r" {2,3}(?=\S)", line) if in_list else None
        lines.append(f"    {line.lstrip()}" if indented else line)
    return "\n".join(lines)
