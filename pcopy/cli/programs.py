"""The list of all programs.

The installed commands (``setup.cfg``), the scripts of ``bin``, the manuals, the completions and the parts of
configuration files are made from this list, or a test compares them with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

PROGRAM_SUMMARIES: Mapping[str, str] = {
    "pcopy": "copy files and directory trees faithfully, with many processes in parallel",
    "psync": "make a directory equal to another one with many processes in parallel",
    "pverify": "compare files and directory trees with signatures, manifests or each other",
    "prm": "remove files and directory trees with many processes in parallel",
    "pstripe": "report how files on Lustre are striped, and change their layouts",
    "ptar": "create, list and extract tar archives with many processes in parallel",
    "pbcast": "copy the same files to a directory of each host",
    "pdbench": "measure how fast a file system is, with many processes in parallel",
    "pwalk": "walk directory trees with many processes, and list or summarise their contents",
    "pchmod": "change modes, owners and ACLs of directory trees with many processes in parallel",
}
"""What each program does, as in the heading of its manual."""

PROGRAMS = tuple(PROGRAM_SUMMARIES)


def load_program(name: str) -> Any:
    """Import the module of the program ``name``, and return its command line (a ``ProgramCommandLine``)."""
    return getattr(import_module(f"pcopy.cli.{name}"), name.upper())
