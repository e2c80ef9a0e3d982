"""Advice about keywords that a function does not have. Loaded when there is one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pcopy.api.keywords import KEYWORDS, LEFT_OUT

_OTHER_WORDS = {
    "n": "ranks",
    **dict.fromkeys(("processes", "workers", "threads", "nproc", "jobs"), "ranks"),
    "timeout": "start(), and wait(timeout) of the job",
    "ignore": "exclude",
    "overwrite": "existing",
    "follow_symlinks": "dereference",
    "missing_ok": "force",
    **dict.fromkeys(("dirs_exist_ok", "symlinks", "ignore_dangling_symlinks"), "copytree()"),
    **dict.fromkeys(("onerror", "onexc"), "rmtree()"),
}
"""What users may mean by words that are no keywords: a keyword, or (with parentheses) a function."""
_EXPLAINED = {
    "recursive": ": always so",
    "remove ignore_errors": "; rmtree() has it; or force=True",
    "ignore_errors": ": the other items are processed even if some fail",
    "archive compress": ": the name chooses: .tar.gz or .tar.zst",
    "archive format": ": the name chooses: .tar, .tar.gz or .tar.zst",
}
"""Ends of messages about words that are no keywords, or (after the name of a function) no keywords of it."""


def text_about_unknown_keywords(function: str, unknown: Iterable[str], known: Sequence[str]) -> str:
    """Return the message about keywords that a function does not have. ``known`` are the other ones and its parameters.

    Each unknown keyword is named, with the nearest known one, or another function that has it.
    """
    texts = [f"no option {keyword!r}{_advice(function, keyword, known)}" for keyword in unknown]
    return f"{function}() has {'; '.join(texts)}"


def _advice(function: str, keyword: str, known: Sequence[str]) -> str:
    """Return the end of the message about an unknown keyword."""
    from difflib import get_close_matches

    if reason := _for_function(LEFT_OUT, function, keyword):
        return f": {reason}"
    if explained := _for_function(_EXPLAINED, function, keyword):
        return explained
    other = _OTHER_WORDS.get(keyword, "")
    if other in known or "(" in other:
        return f"; use {other}"
    if nearest := get_close_matches(keyword, known, 1):
        return f"; the nearest is {nearest[0]!r}"
    return _text_about_functions([*KEYWORDS.get(keyword, ())])


def _for_function(texts: Mapping[str, str], function: str, keyword: str) -> str:
    """Return the text about a keyword in a function, or in all functions; empty if there is none."""
    return texts.get(f"{function} {keyword}") or texts.get(keyword, "")


def _text_about_functions(functions: Sequence[str]) -> str:
    """Return which functions have a keyword; empty if none has it."""
    have = "has" if len(functions) == 1 else "have"
    return f"; {', '.join(f'{name}()' for name in functions)} {have} it" if functions else ""
