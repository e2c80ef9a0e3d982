"""The README is short, and each of its figures is that of the page or of the data to which it refers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

import pytest

from tests.faults.table import ERRORS, TABLE

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
WORDS = " ".join(README.split())


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def picture() -> str:
    """Return the text in the picture of a run, line by line."""
    shown = ElementTree.fromstring(page("run.svg")).itertext()
    return "\n".join(text for text in shown if text.strip()).replace("\u00a0", " ")


def test_readme_is_short_and_has_ten_examples() -> None:
    assert len(README.split()) <= 900
    (examples,) = re.findall(r"## Examples\n\n```sh\n(.*?)```", README, re.DOTALL)
    assert len(examples.splitlines()) == 10
    assert len(re.findall(r"^- \*\*", README, re.MULTILINE)) == 5


def test_readme_installs_from_a_checkout_as_the_name_is_not_registered() -> None:
    installed = re.findall(r"pip install (\S+)", README)
    assert installed == [".", "'.[test]'"]


def test_factor_of_the_readme_is_that_of_the_measurement() -> None:
    (result,) = (each for each in json.loads(page("performance.json")) if each["scenario"] == "latency-20")
    walls = {name: median(way["wall"]) for name, way in result["ways"].items()}
    assert f"-->{walls['cp -a'] / walls['pcopy -n 2']:.0f}\N{MULTIPLICATION SIGN} as fast<!--" in WORDS
    assert result["about"]["delay"] == 1000, "1 ms for each operation"


def test_rest_of_the_readme_is_that_of_the_picture() -> None:
    (rest,) = re.findall(r"^([\d.]+ GiB) by this run", picture(), re.MULTILINE)
    (total,) = re.findall(r"^  copied: .* files of ([\d.]+ GiB), 11 directories", picture(), re.MULTILINE)
    assert f"-->{rest} of {total}<!--" in WORDS


def test_figures_of_the_picture_agree() -> None:
    shown = picture()
    (running, total), (items, found) = (
        re.findall(pattern, shown)[0] for pattern in (r"([\d.]+) GiB of ([\d.]+) GiB,", r"([\d,]+) of ([\d,]+) items")
    )
    stopped = re.findall(r"([\d,]+) found = ([\d,]+) copied .* \+ ([\d,]+) not reached", shown)[0]
    (before,) = re.findall(r"copied: [\d,]+ files of ([\d.]+) GiB$", shown, re.MULTILINE)
    kept = re.findall(r"kept: ([\d.]+) GiB of ([\d.]+) GiB, from earlier runs", shown)[0]
    (rest,) = re.findall(r"^([\d.]+) GiB by this run", shown, re.MULTILINE)
    assert kept == (before, total)
    assert float(kept[0]) + float(rest) == pytest.approx(float(total), abs=0.011)
    assert float(kept[0]) > float(rest), "most of the work is kept"
    assert float(running) == pytest.approx(float(before), abs=0.2), "at most three files were in progress"
    assert found == stopped[0]
    numbers = [int(number.replace(",", "")) for number in (*stopped, items)]
    assert numbers[0] == numbers[1] + numbers[2]
    assert numbers[3] == pytest.approx(numbers[1], abs=5)
    assert f"{found} found = {found} copied + 0 skipped + 0 failed" in shown


def test_picture_has_no_colour_of_an_error() -> None:
    colours = re.findall(r"run-r\d+ { fill: #(..)(..)(..)", page("run.svg"))
    assert len(colours) > 3
    red = [colour for colour in colours if int(colour[0], 16) > 2 * max(int(colour[1], 16), int(colour[2], 16))]
    assert red == []


def test_numbers_of_properties_are_those_of_the_fidelity_page() -> None:
    rows = re.findall(
        r"^\| (?!---)(.+?) \| (.+) \|$", page("operations/fidelity.md").partition("## Contents")[2], re.MULTILINE
    )
    tables = [cells.split(" | ") for _, cells in rows if "`" not in cells.partition("|")[0]]
    assert {len(cells) for cells in tables} == {6}
    pcopy, cp, rsync = (sum(cells[column] == "yes" for cells in tables) for column in (0, 2, 4))
    assert f"Of {len(tables)} properties of files" in WORDS
    assert f"made by root has {pcopy}; with `rsync -aHAXS` it has {rsync}, with `cp -a` {cp}" in WORDS


def test_number_of_injected_failures_is_that_of_the_table() -> None:
    assert {len(row.outcomes) for row in TABLE} == {len(ERRORS)}
    assert f"inject {len(TABLE) * len(ERRORS)} failures of system calls" in WORDS
    explained = " ".join(page("operations/errors.md").partition("## How this is tested")[2].split())
    assert f"{len(TABLE) * len(ERRORS)} failures, which are nine errors" in explained
    assert f"of each of {len(TABLE)} operations" in explained


def test_efficiency_is_that_of_the_simulation() -> None:
    goals = page("design/simulation.md").partition("--ranks 1024 --tasks 2000")[2]
    row = re.findall(r"^\| tree .*$", goals, re.MULTILINE)[0].split("|")
    assert (
        f"simulation of {int(row[3]):,} ranks (processes), {row[6].strip().replace('%', ' %')} of their time" in WORDS
    )
