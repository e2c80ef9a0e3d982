"""The program of a child process: ``python -P child.py PROGRAM [WORD...]`` runs one of the programs.

It runs the same package as the process that has started it, whether that is installed or lies in a checkout. Modules of
other packages are searched as usual, and never in the directory of this file or in the working directory.
"""

import os
import sys


def main() -> None:
    """Run the program, and end the process with its exit status."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from pcopy.cli import script

    del sys.path[0]
    getattr(script, sys.argv.pop(1))()


if __name__ == "__main__":
    main()
