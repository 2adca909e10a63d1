# Part of siw-vm (sourced behind build.sh for SIW_VM_MACHINE=aarch64): a guest of Debian's arm64 packages, without siw.
#
# QEMU, kmod and busybox of this machine's architecture are in $SYS, the guest's packages below $SYS/guest.

K=$CACHE/aarch64-$KERNEL
SYS=$K/sysroot

HOST_PKGS=(qemu-system-arm kmod busybox-static coreutils)
GUEST_PKGS=(busybox-static iproute2 libc6 libgcc-s1 ibverbs-utils rdmacm-utils)
GUEST_MODULES=(virtio_pci virtio_net 9p 9pnet_virtio crc32c_generic)

apt_arm64() {
    apt_empty -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::Etc::sourcelist="$K/sources.list" \
        -o Dir::Etc::sourceparts=- -o Dir::State::lists="$K/lists" "$@"
}

unpack() { # FOLDER DEB...
    local to=$1 f
    shift
    for f in "$@"; do
        dpkg-deb --fsys-tarfile "$f" | tar -x --keep-directory-symlink -C "$to" --exclude './usr/share/doc' --exclude './usr/share/man' \
            --exclude './usr/share/locale' --exclude '*/gconv' --exclude '*/kernel/drivers/gpu' --exclude '*/kernel/drivers/media' \
            --exclude '*/kernel/sound'
    done
}

build_sysroot() { # again whenever the lists of packages change
    local want="${GUEST_PKGS[*]} ${HOST_PKGS[*]}" d r img
    [ "$(cat "$K/sysroot.ok" 2>/dev/null)" = "$want" ] && return 0
    rm -f "$K/sysroot.ok" "$K/kernel" "$K/initramfs.for"
    log "fetching packages for aarch64 into $K"
    rm -rf "$SYS" "$K/apt"
    mkdir -p "$K/apt/archives/partial" "$K/lists/partial" "$K/debs" "$SYS"
    : >"$K/empty-status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main" >"$K/sources.list"
    apt-cache show qemu-system-arm >/dev/null 2>&1 || apt-get -q update >"$K/apt.log" 2>&1 || die "apt-get update failed, see $K/apt.log"
    apt_arm64 update >"$K/apt.log" 2>&1 || die "apt-get update for arm64 failed, see $K/apt.log"
    img=$(apt_arm64 install -s linux-image-arm64 | sed -n 's/^Inst \(linux-image-[0-9][^ ]*\) .*/\1/p' | head -n1)
    [ -n "$img" ] || die "no kernel image package behind linux-image-arm64"
    apt_empty -y --download-only install "${HOST_PKGS[@]}" >>"$K/apt.log" 2>&1 || die "download of packages failed, see $K/apt.log"
    mkdir -p "$K/host"
    mv "$K"/apt/archives/*.deb "$K/host"
    (cd "$K/debs" && apt_arm64 download "$img") >>"$K/apt.log" 2>&1 || die "download of $img failed, see $K/apt.log"
    apt_arm64 -y --download-only install "${GUEST_PKGS[@]}" >>"$K/apt.log" 2>&1 || die "download of packages failed, see $K/apt.log"

    log "unpacking"
    for r in "$SYS" "$SYS/guest"; do
        for d in bin sbin lib lib64; do mkdir -p "$r/usr/$d"; ln -s "usr/$d" "$r/$d"; done
    done
    mkdir -p "$SYS/dev" "$SYS/tmp"
    mknod -m 666 "$SYS/dev/null" c 1 3
    unpack "$SYS" "$K"/host/*.deb
    unpack "$SYS/guest" "$K"/apt/archives/*.deb "$K"/debs/*.deb
    # The loader's own link is absolute; this copy can be run from outside the chroot.
    cp -L "$SYS/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" "$SYS/lib64/ld-linux.run"
    (cd "$K" && ls host apt/archives debs | grep '\.deb$') >"$K/versions"
    echo "${img#linux-image-}" >"$K/abi"
    in_sys depmod -b /guest "${img#linux-image-}"
    rm -rf "$K/apt" "$K/debs" "$K/host" "$K/lists"
    echo "$want" >"$K/sysroot.ok"
}

build_siw() { :; }

build_kernel() { ln -sfn "sysroot/guest/boot/vmlinuz-$(cat "$K/abi")" "$K/kernel"; }

copy_programs() { # TREE: all of the guest's packages; busybox has what they do not
    local t=$1 b
    (cd "$SYS/guest" && tar -c --exclude ./usr/lib/modules --exclude ./boot --exclude ./usr/share .) | tar -x --keep-directory-symlink -C "$t"
    for b in $("$SYS/bin/busybox" --list); do
        [ -e "$t/usr/bin/$b" ] || [ -e "$t/usr/sbin/$b" ] || ln -s busybox "$t/usr/bin/$b"
    done
}

copy_modules() { # TREE: the closure of GUEST_MODULES
    local t=$1 abi m f
    abi=$(cat "$K/abi")
    mkdir -p "$t/lib/modules/$abi"
    cp "$SYS/guest/lib/modules/$abi"/modules.{builtin,builtin.modinfo,order} "$t/lib/modules/$abi/"
    for m in "${GUEST_MODULES[@]}"; do
        in_sys modprobe -d /guest -S "$abi" --show-depends "$m" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | sort -u | while read -r f; do
        f=/lib/${f#*/lib/}
        mkdir -p "$t${f%/*}"
        cp "$SYS/guest$f" "$t$f"
    done
    in_sys depmod -b /initramfs.d "$abi"
}
