# Part of siw-vm (sourced): makes the guest from Debian packages.
#
# No Debian kernel package has siw.ko ("# CONFIG_RDMA_SIW is not set"), so siw is
# built out of tree from the kernel's own source package against its headers, in a
# chroot of unpacked packages. QEMU and tshark run from there too: nothing is
# installed on the host.

K=$CACHE/$KERNEL  # everything for one kernel line
SYS=$K/sysroot    # unpacked packages: guest programs, compiler, QEMU, tshark

GUEST_PKGS=(busybox-static kmod iproute2 ethtool rdma-core ibverbs-providers
            ibverbs-utils rdmacm-utils perftest tcpdump util-linux)
HOST_PKGS=(qemu-system-x86 tshark)
BUILD_PKGS=(bash dash coreutils sed grep mawk findutils make xz-utils tar libc6-dev librdmacm-dev)

GUEST_BINS=(dash bash setsid timeout env nohup stdbuf xargs
            rdma ip tc ss ethtool kmod tcpdump
            ibv_devinfo ibv_devices ibv_rc_pingpong ibv_srq_pingpong
            rping ucmatose rdma_server rdma_client rdma_xserver rdma_xclient
            riostream rstream cmtime
            ib_send_lat ib_send_bw ib_write_lat ib_write_bw ib_read_lat ib_read_bw)

# The last line is for NVMe over Fabrics, which makes siw send Send with Invalidate.
GUEST_MODULES=(virtio_pci virtio_net 9p 9pnet_virtio crc32c_generic crc32c-intel crc32_generic
               ib_core ib_uverbs iw_cm rdma_cm rdma_ucm ib_cm libcrc32c sch_netem sch_tbf
               configfs null_blk nvme-rdma nvmet nvmet-rdma)

# apt with a cache of its own, as if no package were installed.
apt_empty() {
    apt-get -q -o Dir::State::status="$K/empty-status" -o Dir::Cache="$K/apt" \
        -o APT::Sandbox::User=root -o Debug::NoLocking=1 \
        -o APT::Install-Recommends=0 -o Acquire::Retries=3 "$@"
}

in_sys() { chroot "$SYS" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LC_ALL=C "$@"; }

build_sysroot() { # again whenever the lists of packages change
    local want="${GUEST_PKGS[*]} ${HOST_PKGS[*]} ${BUILD_PKGS[*]}"
    [ "$(cat "$K/sysroot.ok" 2>/dev/null)" = "$want" ] && return 0
    rm -f "$K/sysroot.ok" "$K/siw.ok" "$K/kernel" "$K/initramfs.for"
    log "fetching packages for kernel line $KERNEL into $K"
    rm -rf "$SYS" "$K/apt"
    mkdir -p "$K/apt/archives/partial" "$K/debs" "$K/src" "$SYS"
    : >"$K/empty-status"

    local meta=linux-image-amd64 img ver src hdr
    [ "$KERNEL" = 6.1 ] || meta=linux-image-$KERNEL-amd64
    if ! apt-cache show "$meta" >/dev/null 2>&1; then
        log "no package lists for $meta: apt-get update"
        apt-get -q update >"$K/apt.log" 2>&1 || die "apt-get update failed, see $K/apt.log"
    fi
    img=$(apt-cache depends "$meta" | sed -n 's/^ *Depends: \(linux-image-[^ ]*\).*/\1/p' | head -n1)
    [ -n "$img" ] || die "no kernel image package behind $meta"
    ver=$(apt-cache policy "$img" | sed -n 's/^ *Candidate: //p')
    hdr=linux-headers-${img#linux-image-}
    src=linux-source-$KERNEL
    (cd "$K/debs" && apt_empty download "$img=$ver" "$src=$ver") >"$K/apt.log" 2>&1 ||
        die "download of $img or $src failed, see $K/apt.log"
    apt_empty -y --download-only install "$hdr=$ver" \
        "${GUEST_PKGS[@]}" "${HOST_PKGS[@]}" "${BUILD_PKGS[@]}" >>"$K/apt.log" 2>&1 ||
        die "download of packages failed, see $K/apt.log"

    log "unpacking"
    local d f p
    for d in bin sbin lib lib64; do mkdir -p "$SYS/usr/$d"; ln -s "usr/$d" "$SYS/$d"; done
    mkdir -p "$SYS/dev" "$SYS/proc" "$SYS/tmp"
    mknod -m 666 "$SYS/dev/null" c 1 3
    for f in "$K"/apt/archives/*.deb "$K"/debs/linux-image-*.deb; do
        # the /bin -> usr/bin style links stay
        dpkg-deb --fsys-tarfile "$f" | tar -x --keep-directory-symlink -C "$SYS"
    done
    [ -e "$SYS/usr/bin/gcc" ] || ln -s gcc-12 "$SYS/usr/bin/gcc"
    [ -e "$SYS/usr/bin/awk" ] || ln -s mawk "$SYS/usr/bin/awk"
    # The loader's own link is absolute; this copy can be run from outside the chroot.
    cp -L "$SYS/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" "$SYS/lib64/ld-linux.run"
    dpkg-deb --fsys-tarfile "$K"/debs/linux-source-*.deb | tar -xO --wildcards '*/linux-source-*.tar.xz' |
        xz -dc | tar -x -C "$K/src" --strip-components=1 --wildcards 'linux-source-*/drivers/infiniband/sw/siw/*'
    {
        echo "kernel image: $img $ver"
        echo "siw source:   $src $ver"
        for p in "${GUEST_PKGS[@]}" "${HOST_PKGS[@]}"; do
            for f in "$K/apt/archives/${p}"_*.deb; do basename "$f" .deb; done
        done
    } >"$K/versions"
    echo "${img#linux-image-}" >"$K/abi"
    rm -rf "$K/apt" "$K/debs"
    echo "$want" >"$K/sysroot.ok"
}

# Mainline siw has no module parameters: its settings are C constants. This turns
# them into parameters whose defaults are the constants' values.
parameterise() { # DIR
    local p
    for p in zcopy_tx try_gso loopback_enabled mpa_crc_required mpa_crc_strict siw_tcp_nagle peer_to_peer; do
        sed -i -E "s/^const bool $p( = (true|false))?;/bool $p\1;\nmodule_param($p, bool, 0644);/" "$1/siw_main.c"
        sed -i -E "s/^extern const bool $p;/extern bool $p;/" "$1/siw.h"
        grep -q "^module_param($p, bool" "$1/siw_main.c" || die "siw source has no $p to parameterise"
    done
    sed -i -E 's/^(u_char mpa_version = .*;)/\1\nmodule_param(mpa_version, byte, 0644);/' "$1/siw_main.c"
    # rtr_mode: bit 0 = zero-length RDMA Write offered as RTR, bit 1 = zero-length RDMA Read
    sed -i -E -e 's/^static __be16 rtr_type = .*;/static unsigned int rtr_mode = 3;\nmodule_param(rtr_mode, uint, 0644);/' \
        -e 's/^static const bool relaxed_ird_negotiation = true;/static bool relaxed_ird_negotiation = true;\nmodule_param(relaxed_ird_negotiation, bool, 0644);/' \
        -e 's/\|= rtr_type;/|= (rtr_mode \& 1 ? MPA_V2_RDMA_WRITE_RTR : 0) | (rtr_mode \& 2 ? MPA_V2_RDMA_READ_RTR : 0);/' "$1/siw_cm.c"
    # gso_seg_limit: most TCP segments one FPDU may span (0 = no limit)
    sed -i -E -e 's/^(\s*qp->tx_ctx\.gso_seg_limit) = 1;/\1 = gso_seg_limit;/' \
        -e '0,/^#include "siw_mem.h"/s//#include "siw_mem.h"\n\nstatic unsigned int gso_seg_limit = 1;\nmodule_param(gso_seg_limit, uint, 0644);/' "$1/siw_verbs.c"
    for p in mpa_version:siw_main.c rtr_mode:siw_cm.c relaxed_ird_negotiation:siw_cm.c gso_seg_limit:siw_verbs.c; do
        grep -q "^module_param(${p%:*}," "$1/${p#*:}" || die "siw source: cannot parameterise ${p%:*}"
    done
}

build_siw() {
    [ -e "$K/siw.ok" ] && return 0
    local abi v
    abi=$(cat "$K/abi")
    for v in siw siw-param; do
        log "building $v.ko for $abi"
        rm -rf "$SYS/build-$v"
        mkdir -p "$SYS/build-$v"
        cp "$K"/src/drivers/infiniband/sw/siw/* "$SYS/build-$v/"
        [ $v = siw ] || parameterise "$SYS/build-$v"
        in_sys make -C "/usr/src/linux-headers-$abi" "M=/build-$v" CONFIG_RDMA_SIW=m modules >"$K/build-$v.log" 2>&1 ||
            { tail -n 20 "$K/build-$v.log" >&2; die "build of $v failed, see $K/build-$v.log"; }
        in_sys strip --strip-debug "/build-$v/siw.ko"
        cp "$SYS/build-$v/siw.ko" "$K/$v.ko"
    done
    touch "$K/siw.ok"
}

# The unpacked ELF kernel, booted by its PVH entry: without KVM the guest would need
# several seconds to unpack it by itself.
build_kernel() {
    [ -e "$K/kernel" ] && return 0
    local z off
    z=$SYS/boot/vmlinuz-$(cat "$K/abi")
    ln -sfn "${z#"$K"/}" "$K/kernel.new"
    if grep -q '^CONFIG_PVH=y' "$SYS/boot/config-$(cat "$K/abi")"; then
        for off in $(LC_ALL=C grep -abo -P '\xfd7zXZ\x00' "$z" | cut -d: -f1); do
            tail -c "+$((off + 1))" "$z" | xz -dc --single-stream >"$K/vmlinux.new" 2>/dev/null || true
            if [ "$(head -c 4 "$K/vmlinux.new" | tr -d '\0')" = $'\x7fELF' ]; then
                mv "$K/vmlinux.new" "$K/vmlinux"
                ln -sfn vmlinux "$K/kernel.new"
                break
            fi
        done
    fi
    rm -f "$K/vmlinux.new"
    mv -T "$K/kernel.new" "$K/kernel"
}

copy_programs() { # TREE
    local t=$1 b f
    local -a bins=() libs=()
    cp "$SYS/bin/busybox" "$t/bin/busybox"
    for b in $("$SYS/bin/busybox" --list); do [ -e "$t/bin/$b" ] || ln -s busybox "$t/bin/$b"; done
    # Debian's busybox prefers its own applets, from its shell and from applets that run
    # a command; so the shell and those are the real programs.
    for b in "${GUEST_BINS[@]}"; do
        for f in "$SYS/usr/bin/$b" "$SYS/usr/sbin/$b"; do
            [ -f "$f" ] || continue
            rm -f "$t/usr/bin/$b"
            cp "$f" "$t/usr/bin/$b"
            bins+=("${f#"$SYS"}")
            break
        done
        [ -e "$t/usr/bin/$b" ] || die "no program $b in the packages"
    done
    ln -sf dash "$t/usr/bin/sh"
    # our own end, for contents that can be checked
    cp "$HERE/guest/siw-ops.c" "$SYS/tmp/"
    in_sys gcc -O1 -Wall -Werror -o /initramfs.d/usr/bin/siw-ops /tmp/siw-ops.c -lrdmacm -libverbs
    bins+=(/initramfs.d/usr/bin/siw-ops)
    # The conformance tester's agent, as its users compile it.
    cp "$HERE/../agent/agent.c" "$SYS/tmp/"
    in_sys gcc -O1 -Wall -Werror -o /initramfs.d/usr/bin/conform-agent /tmp/agent.c -lrdmacm -libverbs
    bins+=(/initramfs.d/usr/bin/conform-agent)
    for b in modprobe insmod rmmod lsmod modinfo; do
        ln -sf ../bin/kmod "$t/usr/sbin/$b"
        rm -f "$t/usr/bin/$b"
    done
    mkdir -p "$t/usr/lib/x86_64-linux-gnu/libibverbs" "$t/etc/libibverbs.d"
    cp "$SYS/etc/libibverbs.d/siw.driver" "$t/etc/libibverbs.d/"
    for f in "$SYS"/usr/lib/x86_64-linux-gnu/libibverbs/libsiw-rdmav*.so; do
        cp "$f" "$t/usr/lib/x86_64-linux-gnu/libibverbs/"
        bins+=("${f#"$SYS"}")
    done
    # Shared libraries are resolved inside the sysroot.
    mapfile -t libs < <({
        for b in "${bins[@]}"; do in_sys /lib64/ld-linux-x86-64.so.2 --list "$b" 2>/dev/null || true; done |
            sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p'
        printf '/lib/x86_64-linux-gnu/%s\n' libc.so.6 libm.so.6 libgcc_s.so.1 libpthread.so.0
    } | sort -u)
    for f in "${libs[@]}"; do cp -L "$SYS$f" "$t/usr/lib/x86_64-linux-gnu/${f##*/}"; done
    cp -L "$SYS/lib64/ld-linux-x86-64.so.2" "$t/usr/lib/"
}

copy_modules() { # TREE: the closure of GUEST_MODULES, and both builds of siw
    local t=$1 abi m f
    abi=$(cat "$K/abi")
    [ -e "$SYS/lib/modules/$abi/modules.dep" ] || in_sys depmod "$abi"
    mkdir -p "$t/lib/modules/$abi/extra" "$t/lib/siw"
    cp "$SYS/lib/modules/$abi"/modules.{builtin,builtin.modinfo,order} "$t/lib/modules/$abi/"
    for m in "${GUEST_MODULES[@]}"; do
        in_sys modprobe -S "$abi" --show-depends "$m" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | sort -u | while read -r f; do
        f=${f#/usr}
        mkdir -p "$t${f%/*}"
        cp "$SYS$f" "$t$f"
    done
    cp "$K/siw.ko" "$t/lib/modules/$abi/extra/siw.ko"
    cp "$K/siw-param.ko" "$t/lib/siw/siw-param.ko"
    in_sys depmod -b /initramfs.d "$abi"
}

build_initramfs() { # again whenever one of our files changes
    local self t=$SYS/initramfs.d # inside the sysroot, for its depmod
    self=$(cat "$HERE"/build*.sh "$HERE"/guest/* "$HERE/../agent/agent.c" | sha256sum)
    [ -e "$K/initramfs.cpio" ] && [ "$(cat "$K/initramfs.for" 2>/dev/null)" = "$self" ] && return 0
    log "building the initramfs"
    rm -rf "$t"
    mkdir -p "$t"/{dev,proc,sys,run,tmp,root,host,out,etc,var/tmp,usr/bin,usr/sbin,usr/lib}
    ln -s usr/bin "$t/bin"
    ln -s usr/sbin "$t/sbin"
    ln -s usr/lib "$t/lib"
    ln -s usr/lib "$t/lib64"
    copy_programs "$t"
    copy_modules "$t"
    printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n' >"$t/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$t/etc/group"
    printf 'passwd: files\ngroup: files\nhosts: files\n' >"$t/etc/nsswitch.conf"
    printf '127.0.0.1 localhost siw-guest\n%s guest\n%s host\n' "$GUEST_IP" "$HOST_IP" >"$t/etc/hosts"
    install -m 755 "$HERE/guest/init" "$t/init"
    install -m 755 "$HERE"/guest/{waitport,pair,capture} "$t/usr/bin/"
    (cd "$t" && find . -mindepth 1 | sort | "$SYS/bin/busybox" cpio -o -H newc 2>/dev/null) >"$K/initramfs.cpio.new"
    mv "$K/initramfs.cpio.new" "$K/initramfs.cpio"
    echo "$self" >"$K/initramfs.for"
    rm -rf "$t"
}

do_build() {
    local c
    [ "$(id -u)" = 0 ] || die "must run as root"
    for c in apt-get apt-cache dpkg-deb tar xz chroot flock ip sha256sum; do
        command -v "$c" >/dev/null || die "needs the program $c"
    done
    mkdir -p "$K"
    exec 8>"$CACHE/lock"
    flock -w 900 8 || die "another build holds $CACHE/lock"
    build_sysroot
    build_siw
    build_kernel
    build_initramfs
    exec 8>&-
}

# Runs a program of the sysroot with the sysroot's own libraries.
sys_exec() {
    local lp=$SYS/usr/lib/x86_64-linux-gnu d prog=$1
    shift
    for d in "$SYS"/usr/lib/x86_64-linux-gnu/*/; do lp+=:${d%/}; done
    export QEMU_MODULE_DIR=$SYS/usr/lib/x86_64-linux-gnu/qemu
    exec "$SYS/lib64/ld-linux.run" --library-path "$lp" "$SYS/usr/bin/$prog" "$@"
}
