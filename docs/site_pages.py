"""A hook of MkDocs: docs/index.md is the navigation, the pages that lie outside of docs come into the site, and links
lead to where pages are there.

Each heading of the index is a tab of the site, with the pages to which its list leads.
In the repository each link leads to a file, so that any viewer can follow it. In the site README.md is readme.html;
what is no page of it, such as code, is named without a link.
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
OUTSIDE = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository, and what they are called in the site."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    index = (ROOT / "docs" / "index.md").read_text()
    config.nav = [{"Home": "index.md"}]
    for section in index.split("\n## ")[1:]:
        links = [(words, uri_of("docs/index.md", target)) for _, words, target, _ in _LINK.findall(section)]
        config.nav.append({section.partition("\n")[0]: [{words: uri} for words, uri in links]})
    return config


def uri_of(here: str, target: str) -> str:
    """Where in the site that is to which ``target`` leads in the file ``here`` of the repository."""
    name = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    return OUTSIDE.get(name, name.removeprefix("docs/"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for name, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = {uri: name for name, uri in OUTSIDE.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def led(link: re.Match[str]) -> str:
        picture, words, target, anchor = link.groups()
        uri = uri_of(here, target)
        if files.get_file_from_path(uri) is None:
            is_there = (ROOT / posixpath.dirname(here) / target).exists()
            return words if is_there else link[0]  # MkDocs warns of the latter
        shorter = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"{picture}[{words}]({shorter}{anchor or ''})"

    return four_spaces(_LINK.sub(led, markdown))


def four_spaces(markdown: str) -> str:
    """With what belongs to an item of a list as far indented as MkDocs wants; for others two or three spaces do."""
    lines = []
    in_list = False
    for line in markdown.split("\n"):
        if line[:1].strip():
            in_list = re.match(r"[-*] |\d+\. ", line) is not None
        indented = re.match(r" {2,3}(?=\S)", line) if in_list else None
        lines.append(f"    {line.lstrip()}" if indented else line)
    return "\n".join(lines)
