#!/bin/sh
# Usage: try_roots.sh DIRECTORY SUITE...
# Installs the wheel of DIRECTORY in a fresh root of each SUITE of Debian, and checks it: as a user without root,
# compiler and network, who installs into a home directory from files that were downloaded elsewhere; then with a home
# on a full file system; then from a read-only checkout, which is the source distribution of DIRECTORY. Run it as root,
# with debootstrap. PCOPY_ROOTS names a directory with existing roots (SUITE in it), which are used and kept; MIRROR is
# a mirror of Debian (default: apt's).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
directory=$(cd "$1" && pwd)
shift
mirror=${MIRROR-$("$here/mirror.sh")}
place=$(mktemp -d)
trap 'rm -rf --one-file-system "$place"' EXIT
roots=${PCOPY_ROOTS-$place}
if [ "$(id -u)" -ne 0 ]; then
    echo "$0: run it as root" >&2
    exit 1
fi

for suite in "$@"; do
    root=$roots/$suite
    if [ ! -d "$root" ]; then
        script=/usr/share/debootstrap/scripts/$suite
        [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
        debootstrap --variant=minbase --include=python3,python3-venv "$suite" "$root" "$mirror" "$script" \
            > "$place/log" || { tail "$place/log" >&2; exit 1; }
    fi
    number=$(chroot "$root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    rm -rf "$root/packages"
    python3 -m venv "$place/venv"
    "$place/venv/bin/pip" download -q --disable-pip-version-check -d "$root/packages" --only-binary :all: \
        --python-version "$number" --implementation cp --abi "cp$(echo "$number" | tr -d .)" --abi abi3 --abi none \
        --platform "manylinux2014_$(uname -m)" --platform "manylinux_2_17_$(uname -m)" \
        --platform "manylinux_2_28_$(uname -m)" --platform "linux_$(uname -m)" \
        "$directory"/pcopy-*-manylinux2014_"$(uname -m)".whl "setuptools>=64"
    rm -rf "$root/checkout"
    mkdir "$root/checkout"
    tar -xf "$directory"/pcopy-*.tar.gz -C "$root/checkout" --strip-components=1 --no-same-owner
    cp "$here/check_installed.sh" "$here/try_as_user.sh" "$root"
    chmod 0755 "$root/packages" "$root"/*.sh
    chmod 0644 "$root"/packages/*
    echo "$suite, Python $number:"
    # In namespaces of its own: no network, and mounts that end with it.
    unshare --mount --net --propagation private sh -eu -c '
        mount -t proc proc "$1/proc"
        mount --bind /dev "$1/dev"
        mount -t tmpfs -o mode=1777 tmp "$1/tmp"
        mkdir -p "$1/home/user" "$1/full"
        rm -rf "$1/home/user/venv" "$1/home/user/copy"
        chown 1000:1000 "$1/home/user"
        mount --bind "$1/checkout" "$1/checkout"
        mount -o remount,bind,ro "$1/checkout"
        mount -t tmpfs -o size=64k,mode=1777 full "$1/full"
        head -c 65536 /dev/zero > "$1/full/data" 2>/dev/null || true
        for library in "$1"/usr/lib/*/libxxhash.so.0; do # apt needs it
            [ ! -e "$library" ] || mount --bind /dev/null "$library"
        done
        exec env -i PATH="$PATH" chroot --userspec=1000:1000 "$1" /try_as_user.sh
    ' sh "$root"
    rm -rf "$place/venv"
done
