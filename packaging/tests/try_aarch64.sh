#!/bin/sh
# Usage: try_aarch64.sh DIRECTORY [MIRROR]
# Runs the wheel for aarch64, from DIRECTORY, with an emulator (qemu-user-static) and Debian's Python for that
# architecture. Run it as root, on Debian with debootstrap and qemu-user-static. MIRROR is a mirror of Debian; by
# default that of this host's apt.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
directory=$(cd "$1" && pwd)
mirror=${2-$("$here/mirror.sh")}
place=$(mktemp -d)
trap 'rm -rf --one-file-system "$place"' EXIT
root=$place/root

# The second stage of debootstrap would run programs of the other architecture; to unpack the packages is sufficient.
debootstrap --foreign --arch=arm64 --variant=minbase --include=python3 bookworm "$root" "$mirror" > "$place/log" ||
    { tail "$place/log" >&2; exit 1; }
for package in "$root"/var/cache/apt/archives/*python3*.deb "$root"/var/cache/apt/archives/lib*.deb; do
    dpkg-deb -x "$package" "$root"
done
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q --disable-pip-version-check --target "$place/site" --platform manylinux2014_aarch64 \
    --platform manylinux_2_17_aarch64 --platform manylinux_2_28_aarch64 --python-version 3.11 --implementation cp \
    --abi cp311 --abi abi3 --abi none --only-binary :all: "$directory"/pcopy-*-manylinux2014_aarch64.whl
# The emulator runs within the root: with its option -L, the root would hide directories of this host, such as /tmp.
cp "$(command -v qemu-aarch64-static)" "$root/"
cp -r "$place/site" "$root/site"
rm -f "$root/proc" # a link to this host's
mkdir -p "$root/proc"
# In a mount namespace of its own, whose mounts end with it. One rank: the emulator has threads of its own, and pcopy
# forks ranks only where it has one thread.
RANKS=1 TMPDIR=/tmp PYTHONPATH=/site unshare --mount --propagation private sh -eu -c '
    mount -t proc proc "$1/proc"
    mount --bind /dev "$1/dev"
    mount --bind /tmp "$1/tmp"
    exec "$2" chroot "$1" /qemu-aarch64-static /usr/bin/python3.11 -P -m pcopy
' sh "$root" "$here/check_installed.sh"
