#!/bin/sh
# Unpacks the tarball as the container's root sees it. The last step gives it its name, so a half-made one is never used.
# usage: unpack_rootfs.sh TARBALL ROOTFS FIRST_ID HOSTNAME VMID
set -eu
tarball=$1 rootfs=$2 first_id=$3 hostname=$4 vmid=$5

rm -rf "$rootfs.new"
mkdir "$rootfs.new"
chown "$first_id:$first_id" "$rootfs.new"

# Device nodes cannot be made in a user namespace; LXC mounts the container's own.
# mmdebstrap leaves this machine's name behind.
# What cannot work here would leave systemd "degraded": debugfs is not for a user namespace, and there is no network for apt.
lxc-usernsexec -m "b:0:$first_id:65536" -- sh -eu -c '
    cd "$1"
    tar -xf - --exclude "./dev/*"
    echo "$2" >etc/hostname
    printf "127.0.0.1 localhost\n127.0.1.1 %s\n" "$2" >etc/hosts
    rm -f etc/resolv.conf
    for unit in sys-kernel-debug.mount apt-daily.timer apt-daily-upgrade.timer; do
        ln -sf /dev/null "etc/systemd/system/$unit"
    done
    mkdir -p etc/sglang-lab/faults etc/sglang-lab/nvidia-smi models
    echo "$3" >etc/sglang-lab/nvidia-smi/vmid
' sh "$rootfs.new" "$hostname" "$vmid" <"$tarball"

mv "$rootfs.new" "$rootfs"
