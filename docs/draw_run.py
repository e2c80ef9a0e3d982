"""Generate the picture of a run, ``docs/run.svg``, and the figure about it in the README: ``python docs/draw_run.py``.
It requires pyte (extra ``docs``), and 9 GiB of memory in /dev/shm.

All output in the picture comes from real runs on a pseudo-terminal: a copy that is interrupted with Ctrl-C when most of
it is done, the resumed copy, and a comparison. Of the progress bar, which is redrawn again and again, only the last
state is shown. The directory is displayed as /home/ann.
"""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, LINES = 92, 40
"""The size of the terminal."""
INTERRUPTED_AT = 70
"""The progress, in percent, at which the copy is interrupted."""

_THEME = TerminalTheme(
    (16, 24, 28),
    (214, 222, 226),
    [
        *((16, 24, 28), (224, 96, 96), (80, 190, 140), (214, 176, 88)),
        *((96, 160, 220), (190, 130, 200), (90, 190, 200), (214, 222, 226)),
    ],
)
_STYLES = """
    .{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
        font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
    {styles}
"""


def picture_lines() -> Iterator[Text]:
    """Yield the lines of the picture."""
    with tempfile.TemporaryDirectory(prefix="pcopy-", dir="/dev/shm") as place:
        top = Path(place)
        create_source(top / "results")
        (top / "archive").mkdir()
        (top / "state").mkdir()
        yield from command_output(top, "pcopy results archive", interrupted=True)
        yield Text()
        yield from command_output(top, "pcopy --resume")
        yield Text()
        yield from command_output(top, "pverify results archive/results")


def create_source(top: Path) -> None:
    """Create the tree to copy."""
    for run in range(10):
        (top / f"run{run}").mkdir(parents=True)
        for number in range(200):
            (top / f"run{run}" / f"part{number}").write_bytes(bytes(9000))
    for number in range(64):
        (top / f"fields{number:02}.h5").write_bytes(bytes(64 << 20))


def command_output(top: Path, line: str, interrupted: bool = False) -> Iterator[Text]:
    """Run a command, and yield it and its output.

    If ``interrupted``, send Ctrl-C at ``INTERRUPTED_AT``, and show the progress bar as it was then.
    """
    yield Text.assemble(("$ ", "bold green"), (line, "bold"))
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    bar: list[Text] = []
    process, terminal = start_on_terminal(
        top, [*line.split(), *(("--progress-interval", "0.05") if interrupted else ())]
    )
    while output := read_terminal(terminal):
        stream.feed(output)
        percent = max((int(found) for found in re.findall(r"(\d+)(?:\.\d+)? %", "\n".join(screen.display))), default=0)
        if interrupted and not bar and percent >= INTERRUPTED_AT:
            bar = screen_lines(screen)[1:]
            os.write(terminal, b"\x03")
    os.waitpid(process, 0)
    first, *rest = screen_lines(screen)
    for row in [first, *bar, *rest]:
        yield Text(row.plain.replace(str(top), "/home/ann")) if str(top) in row.plain else row


def start_on_terminal(top: Path, words: list[str]) -> tuple[int, int]:
    """Start a command on a new pseudo-terminal, and return its process ID and the terminal's descriptor."""
    process, terminal = pty.fork()
    if process == 0:
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
        environment |= {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "XDG_STATE_HOME": str(top / "state")}
        os.chdir(top)
        os.execve(sys.executable, [sys.executable, str(ROOT / "bin" / words[0]), *words[1:]], environment)
    return process, terminal


def read_terminal(terminal: int) -> bytes:
    """Return the next output on the terminal, empty at the end."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO: on Linux, all processes have closed the other side
        return b""


def screen_lines(screen: pyte.Screen) -> list[Text]:
    """Return the lines on the screen, with their colours."""
    lines = []
    for number in range(screen.lines):
        cells = [screen.buffer[number][column] for column in range(screen.columns)]
        line = Text()
        for style, alike in groupby(cells, style_of):
            line.append("".join(cell.data for cell in alike), style)
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def style_of(cell: pyte.screens.Char) -> Style:
    """Return the style of a character on the screen."""
    is_number = re.fullmatch("[0-9a-f]{6}", cell.fg) is not None
    return Style(color=None if cell.fg == "default" else f"#{cell.fg}" if is_number else cell.fg, bold=cell.bold)


def with_figure_of_picture(readme: str, picture: str) -> str:
    """Return the text of the README with the bytes that the resumed copy in the picture has copied, and their total."""
    rest, total = bytes_of_resumed_copy(picture)
    return re.sub("(?<=<!-- rest -->).*?(?=<!-- /rest -->)", f"{rest} of {total}", readme)


def bytes_of_resumed_copy(picture: str) -> tuple[str, str]:
    """Return the bytes that the resumed copy has copied, and those of the whole copy, as the picture shows them."""
    shown = "".join(ElementTree.fromstring(picture).itertext()).replace("\u00a0", " ")
    (rest,) = re.findall(r"([\d.]+ GiB) by this run", shown)
    (total,) = re.findall(r"kept: .*? of ([\d.]+ GiB)", shown)
    return rest, total


def main() -> None:
    """Write the picture, and its figure into the README."""
    from rich._export_format import CONSOLE_SVG_FORMAT

    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for line in picture_lines():
        console.print(line, soft_wrap=True)
    form = re.sub(r"<style>.*?</style>", lambda _: f"<style>{_STYLES}</style>", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = re.sub(r"<!--.*?-->", "", form)
    picture = console.export_svg(title="pcopy", theme=_THEME, code_format=form, unique_id="run")
    (ROOT / "docs" / "run.svg").write_text(picture)
    readme = ROOT / "README.md"
    readme.write_text(with_figure_of_picture(readme.read_text(), picture))


if __name__ == "__main__":
    main()
