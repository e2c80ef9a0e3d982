"""A hook of MkDocs: the pages that lie outside of docs come into the site, and links lead to where pages are there.

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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for name, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = {uri: name for name, uri in OUTSIDE.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def led(link: re.Match[str]) -> str:
        picture, words, target, anchor = link.groups()
        name = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        uri = OUTSIDE.get(name, name.removeprefix("docs/"))
        if files.get_file_from_path(uri) is None:
            if not (ROOT / name).exists():
                return link[0]  # MkDocs warns of it
            return words
        shorter = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"{picture}[{words}]({shorter}{anchor or ''})"

    return _LINK.sub(led, markdown)
