#!/bin/sh
# Usage: try_pythons.sh DIRECTORY PYTHON...
# Installs the wheel of this host's architecture, from DIRECTORY, into a virtual environment of each PYTHON, and checks
# it there. The dependencies come from pip's package index.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
directory=$1
shift
for python in "$@"; do
    place=$(mktemp -d)
    "$python" -m venv "$place"
    "$place/bin/pip" install -q --disable-pip-version-check "$directory"/pcopy-*-manylinux2014_"$(uname -m)".whl
    echo "$("$place/bin/python" --version):"
    "$here/check_installed.sh" "$place/bin/pcopy"
    rm -rf "$place"
done
