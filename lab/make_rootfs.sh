#!/bin/sh
# Makes the container's root file system as a tarball, from the sources that this machine's apt already uses,
# so that no address stands here and the same mirror serves both.
# usage: make_rootfs.sh SUITE TARBALL PACKAGE,PACKAGE...
set -eu
suite=$1 tarball=$2 packages=$3

# The distribution's own sources only: a third party's need not exist for this suite nor be trusted inside.
own_sources() {
    apt-get indextargets --format '$(ORIGIN) deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sed -nE 's/^(Debian|Ubuntu) deb /deb /p' | sort -u
}

mkdir -p "$(dirname "$tarball")"
work=$(mktemp -d "$tarball.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
chmod 0755 "$work" # apt's own user works below it

own_sources >"$work/sources.list"
if [ ! -s "$work/sources.list" ]; then
    apt-get update
    own_sources >"$work/sources.list"
fi

TMPDIR=$work mmdebstrap --mode=root --variant=minbase --include="$packages" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$suite" "$work/rootfs.tar" "$work/sources.list"
mv "$work/rootfs.tar" "$tarball"
