"""From the user's words to a job, and from its end to what the user is told. Both on rank 0 only."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from pcopy.cli.options import Arguments, parse
from pcopy.cli.paths import resolve
from pcopy.cli.rank import Ended
from pcopy.cli.report import summary_json, summary_lines
from pcopy.cli.signals import told
from pcopy.cli.verbose import Verbose
from pcopy.tasks.job import Job, Root
from pcopy.tasks.sinks import Sink
from pcopy.text import shown


class Preparation:
    """A job, the arguments that it came from, and the time (seconds) at which it began."""

    def __init__(self, words: Sequence[str]) -> None:
        """Raises ``Refused``; nothing is touched."""
        self.began = time.monotonic()
        self.arguments: Arguments = parse(words)
        roots = resolve(self.arguments.sources, self.arguments.destination, self.arguments.no_target_directory)
        options = self.arguments.options._replace(umask=_umask())
        self.job = Job(os.urandom(5).hex(), 1, roots, options)

    def announce(self) -> None:
        """The first line of output: what is copied where."""
        roots = self.job.roots
        targets = {_target(root) for root in roots} if len(roots) == 1 else {roots[0].target}
        sources = shown(roots[0].source_shown) if len(roots) == 1 else f"{len(roots)} sources"
        stream = sys.stderr if self.arguments.json else sys.stdout
        print(f"{sources} -> {shown(targets.pop())}", file=stream, flush=True)

    def sink(self, screen: Sink) -> Sink:
        """Where the job tells what happens: the screen, with more if the user wants more."""
        return Verbose(screen) if self.arguments.verbose else screen

    def tell_end(self, ended: Ended, ranks: int) -> int:
        """Prints the summary; returns the exit status."""
        seconds = time.monotonic() - self.began
        if ended.halted is not None:
            print(f"pcopy: {told(ended.halted)}", file=sys.stderr)
        if self.arguments.json:
            print(summary_json(ended.totals, seconds, ranks, ended.status), flush=True)
        else:
            print("\n".join(summary_lines(ended.totals, seconds, ranks, ended.status)), flush=True)
        return ended.status


def _target(root: Root) -> bytes:
    return os.path.join(root.target, root.name) if root.name else root.target


def _umask() -> int:
    """The user's umask. From now on what pcopy makes is nobody else's until it is finished."""
    return os.umask(0o077)
