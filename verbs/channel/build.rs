//! Sets the soname, and makes the name that the dynamic linker uses beside the library.

use std::env;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdgiwarpchannel.so.1");
    // Threads live in the library: it must never be unmapped by dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // OUT_DIR is PROFILE/build/PACKAGE-HASH/out; the library is in PROFILE/deps.
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    if let Some(profile) = out.ancestors().nth(3) {
        match symlink(
            "libdgiwarpchannel.so",
            profile.join("deps/libdgiwarpchannel.so.1"),
        ) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                println!("cargo:warning=no name for the dynamic linker: {error}");
            }
            Ok(()) | Err(_) => {}
        }
    }
}
