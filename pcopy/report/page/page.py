"""The HTML page of a report: one file that loads nothing from the network and runs no script.

Its Content-Security-Policy allows only its own style sheet, identified by its digest. So a script or an image in the
name of a file would have no effect even if the name were not escaped.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from pcopy.errors import EXIT_INTERNAL, EXIT_OK
from pcopy.report.page import sections
from pcopy.report.page.markup import Child, Markup, html_element, joined_markup, path_markup
from pcopy.text import count_with_noun
from pcopy.units import format_seconds, format_size

_STYLE = Path(__file__).with_name("style.css")


def html_report_page(values: Mapping[str, Any]) -> str:
    """Return the page of a report; ``values`` are those of the JSON report, by key (docs/formats/report.md)."""
    contents = (
        _heading(values), _summary_boxes(values), sections.items_section(values), sections.rates_section(values),
        sections.sizes_section(values),
        sections.ranks_section(values), sections.slowest_section(values), sections.failures_section(values),
        sections.layouts_section(values),
        sections.job_section(values), _footer(values),
    )  # fmt: skip
    title = f"{values['program']}: {_source_and_destination(values)}: {values['meaning']}"
    return html_document(title, *contents, comment=f"{values['format']} {values['version']}")


def html_document(title: str, *contents: Child, comment: str) -> str:
    """Return an HTML page with this title and contents.

    ``comment``: a comment at its beginning, by which a later run recognises that it may replace the file.
    """
    style = _STYLE.read_text("utf-8")
    digest = b2a_base64(sha256(style.encode()).digest(), newline=False).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = html_element(
        "head",
        html_element("meta", charset="utf-8"),
        html_element("meta", http_equiv="Content-Security-Policy", content=policy),
        html_element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        html_element("meta", name="referrer", content="no-referrer"),
        html_element("title", title),
        html_element("style", Markup(style)),
    )
    body = html_element("body", html_element("main", *contents))
    return f"<!doctype html>\n<!-- {comment} -->\n{html_element('html', head, body, lang='en')}\n"


def _source_and_destination(values: Mapping[str, Any]) -> str:
    """Return the source, and the destination if the job has one, as text; several sources are shown as their number."""
    sources = values["job"]["sources"]
    source = sources[0]["path"] if len(sources) == 1 else count_with_noun(len(sources), "source", "sources")
    target = values["job"]["destination"]
    return f"{source} to {target['path']}" if target else str(source)


def _heading(values: Mapping[str, Any]) -> Markup:
    """Return the header of the page: source, destination and outcome."""
    sources, target = values["job"]["sources"], values["job"]["destination"]
    source = (
        path_markup(sources[0]["path"]) if len(sources) == 1 else count_with_noun(len(sources), "source", "sources")
    )
    names = (source, html_element("span", "→", class_="to"), path_markup(target["path"])) if target else (source,)
    status = values["exit_status"]
    kind, sign = ("good", "✓") if status == EXIT_OK else ("bad", "✕") if status == EXIT_INTERNAL else ("warn", "!")
    state = f"{sign} {values['meaning'][:1].upper()}{values['meaning'][1:]} (status {status})"
    failed, is_dry = values["totals"]["failed"], values["dry_run"]
    link = (
        html_element("a", f"{count_with_noun(failed, 'failure', 'failures')} below", href="#failures")
        if failed
        else None
    )
    return html_element(
        "header",
        html_element("p", f"{values['program']} report", class_="over"),
        html_element("h1", *names),
        html_element("span", state, class_=f"state {kind}"),
        html_element("p", values["halted"]) if values["halted"] else None,
        html_element("p", f"A dry run: nothing was changed. Items shown as {values['done']} would have been.")
        if is_dry
        else None,
        html_element("p", link) if link else None,
    )


def _summary_boxes(values: Mapping[str, Any]) -> Markup:
    """Return the boxes with the most important numbers: bytes, items, duration, rate and failures."""
    totals, run, seconds = values["totals"], values["this_run"], values["seconds"]
    is_first = values["job"]["run"] == 1
    done = values["done"]
    pace = run["items"] / seconds if seconds > 0 else 0.0
    tiles = [
        (f"Bytes {done}", format_size(totals["bytes"]), f"of {format_size(totals['found_bytes'])} found"),
        (f"Items {done}", f"{totals['copied']:,}", f"of {totals['found']:,} found"),
        ("Duration", format_seconds(seconds), f"{values['started'][:16].replace('T', ' ')} UTC"),
        ("Mean rate", sections.byte_rate_text(run["bytes_per_second"]), f"{pace:,.0f} items/s"),
        ("Failed", f"{totals['failed']:,}", f"{totals['skipped']:,} skipped"),
    ]
    boxes = [
        html_element("div", html_element("dt", name), html_element("dd", value, html_element("small", note)))
        for name, value, note in tiles
    ]
    if not is_first:
        text = f"Duration and rates are of this run, number {values['job']['run']} of the job; sums are of all runs."
        return joined_markup(html_element("dl", *boxes, class_="tiles"), html_element("p", text, class_="soft"))
    return html_element("dl", *boxes, class_="tiles")


def _footer(values: Mapping[str, Any]) -> Markup:
    """Return the footer of the page: program, version and time."""
    text = f"Made by {values['program']} {values['program_version']} at {values['ended']}. Sizes are in powers of 1024."
    return html_element("footer", text)
