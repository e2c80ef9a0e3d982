#!/bin/sh
# Prints the mirror of Debian that this host's apt uses.
set -eu
cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    sed -n -e 's/^URIs: *\([^ ]*\).*/\1/p' -e 's/^deb \(\[[^]]*\] \)\?\([^ ]*\).*/\2/p' | sed -n 1p | grep .
