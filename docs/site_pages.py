"""A hook of MkDocs that builds the navigation from docs/index.md, adds pages from outside of docs, and corrects links.

Each heading of the index becomes a tab of the site, with the pages of the list below it. In the repository each link
leads to a file, so that any viewer can follow it. In the site, README.md is readme.html; the text of a link to a file
that is no page of the site, such as code, is kept without the link.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES_OUTSIDE_DOCS = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository outside of docs that become pages, and their names in the site."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)")
"""A link or a picture in Markdown that leads to a file, with an optional anchor."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation."""
    index = (ROOT / "docs" / "index.md").read_text()
    config.nav = [{"Home": "index.md"}]
    for section in index.split("\n## ")[1:]:
        links = [(words, site_path("docs/index.md", target)) for _, words, target, _ in _LINK.findall(section)]
        config.nav.append({section.partition("\n")[0]: [{words: uri} for words, uri in links]})
    return config


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
    """Return the page with links that are correct in the site."""
    here = {uri: name for name, uri in PAGES_OUTSIDE_DOCS.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def corrected(link: re.Match[str]) -> str:
        picture, words, target, anchor = link.groups()
        uri = site_path(here, target)
        if files.get_file_from_path(uri) is None:
            exists = (ROOT / posixpath.dirname(here) / target).exists()
            return words if exists else link[0]  # MkDocs warns about a link to a missing file
        shorter = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"{picture}[{words}]({shorter}{anchor or ''})"

    return with_four_space_indents(_LINK.sub(corrected, markdown))


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
