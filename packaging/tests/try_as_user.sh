#!/bin/sh
# Usage: try_as_user.sh
# try_roots.sh runs this in a fresh root, as a user without root, compiler and network. /packages has the wheels of
# pcopy and of its requirements, /checkout is read-only, and /full is a full file system.
set -eu

export HOME=/home/user PATH=/usr/bin:/bin
if command -v gcc || python3 -c 'from ctypes import CDLL; CDLL("libxxhash.so.0")' 2>/dev/null; then
    echo "$0: this root has a compiler or libxxhash" >&2
    exit 1
fi

copied_from() { # copied_from WORD...: copies a tree with this command, and compares it
    rm -rf /tmp/copied
    "$@" -q /usr/share/common-licenses /tmp/copied
    diff -r /usr/share/common-licenses /tmp/copied
}

python3 -m venv "$HOME/venv"
"$HOME/venv/bin/pip" install -q --no-index --find-links /packages --only-binary :all: pcopy
/check_installed.sh "$HOME/venv/bin/pcopy"
"$HOME/venv/bin/python" -c '
from pcopy.fsio.backend._native import lib
assert lib.pk_find_digest(b"xxh3-128"), "the C backend computes no digests"'
echo "without libxxhash: the C backend computes digests"

HOME=/full XDG_STATE_HOME='' PCOPY_BACKEND=c copied_from "$HOME/venv/bin/pcopy"
echo "home on a full file system: copied"

"$HOME/venv/bin/pip" uninstall -q --yes pcopy
if touch /checkout/pcopy/written 2>/dev/null; then
    echo "$0: /checkout is not read-only" >&2
    exit 1
fi
PATH=$HOME/venv/bin:$PATH copied_from /checkout/bin/pcopy
cp -r /checkout "$HOME/copy"
"$HOME/venv/bin/pip" install -q --no-index --find-links /packages "$HOME/copy"
"$HOME/venv/bin/pcopy" --version
copied_from "$HOME/venv/bin/pcopy"
echo "read-only checkout: runs in place, and is installed from a copy, without a compiler"
