#!/bin/sh
# Usage: check_installed.sh COMMAND...
# Checks an installed pcopy, which COMMAND starts ("pcopy", or "chroot ROOT /qemu-aarch64-static /usr/bin/python3 -m
# pcopy"): it has the C backend, and copies a tree that diff finds equal, with digests that pcopy verifies. RANKS is the
# number of ranks (default: 2).
set -eu

area=$(mktemp -d)
trap 'chmod -R u+w "$area"; rm -rf "$area"' EXIT
cd "$area" # not a checkout, whose package python -m pcopy would run
export PCOPY_BACKEND=c XDG_STATE_HOME="$area/state"

reported=$("$@" --version)
echo "$reported"
case $reported in
    *"(backend c)") ;;
    *) echo "the C backend is not used" >&2; exit 1 ;;
esac

mkdir -p "$area/source/a/b/c" "$area/source/empty"
number=0
while [ "$number" -lt 200 ]; do
    number=$((number + 1))
    head -c "$((number * 997))" /dev/urandom > "$area/source/a/b/$number"
done
: > "$area/source/a/nothing"
ln -s ../a/b/7 "$area/source/empty/link"
ln "$area/source/a/b/8" "$area/source/a/b/c/hard"
chmod 0700 "$area/source/a/b"
chmod 0444 "$area/source/a/b/9"
touch -d "2001-02-03 04:05:06.789" "$area/source/a/b/10"

# stat prints mode, links, size and time of each item.
listing() {
    (cd "$1" && find . ! -type d -exec stat --format="%n %f %h %s %y" {} + | sort)
}

"$@" -q -n "${RANKS:-2}" --verify --signature "$area/signature" "$area/source/" "$area/copy"
diff -r --no-dereference "$area/source" "$area/copy"
listing "$area/source" > "$area/expected"
listing "$area/copy" | diff "$area/expected" -
[ "$(stat --format=%a "$area/copy/a/b")" = 700 ]
[ "$(readlink "$area/copy/empty/link")" = ../a/b/7 ]
echo "copied and compared: $(wc -l < "$area/expected") items"
