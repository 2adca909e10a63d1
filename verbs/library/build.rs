//! Sets soname and version nodes of the cdylib, and lays out the files for programs linked to it.
//!
//! rustc always passes an anonymous version script. lld, its default linker on x86-64 Linux, accepts a second, named
//! one that only declares nodes; the symbols name their nodes themselves (`export.rs` of dgiwarp-verbs). GNU ld refuses
//! the pair, and the link fails loudly.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() {
    let dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    println!("cargo:rerun-if-changed=nodes.map");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=dgiwarp.pc.in");
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch != "x86_64") {
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    }
    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,--version-script={}",
        dir.join("nodes.map").display()
    );
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // Background threads and thread-local destructors live in the library: it must never be unmapped by dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if let Err(error) = lay_out(&dir) {
        println!("cargo:warning=programs cannot be linked by pkg-config: {error}");
    }
}

/// Creates beside the programs of cargo: `dgiwarp/` with the names for the dynamic linker, and `pkgconfig/dgiwarp.pc`,
/// which refers to it. An installation has the same files (`cargo xtask dist`).
///
/// The links refer to the library in `deps`, which `cargo build` and `cargo test` build after this script.
fn lay_out(package: &Path) -> io::Result<()> {
    // OUT_DIR is PROFILE/build/PACKAGE-HASH/out.
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let profile = out.ancestors().nth(3).ok_or(io::ErrorKind::NotFound)?;
    let folder = profile.join("dgiwarp");
    fs::create_dir_all(&folder)?;
    // Three names for the dynamic linker, one for the linker.
    for name in [
        "libibverbs.so.1",
        "librdmacm.so.1",
        "libefa.so.1",
        "libdgiwarp_verbs.so",
    ] {
        let link = folder.join(name);
        match symlink("../deps/libdgiwarp_verbs.so", &link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let text = fs::read_to_string(package.join("dgiwarp.pc.in"))?
        .replace(
            "@includedir@",
            &package.with_file_name("include").display().to_string(),
        )
        .replace("@libdir@", &folder.display().to_string())
        .replace("@version@", &version);
    fs::create_dir_all(profile.join("pkgconfig"))?;
    fs::write(profile.join("pkgconfig/dgiwarp.pc"), text)
}
