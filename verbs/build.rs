//! Gives the cdylib its soname and its version nodes.
//!
//! rustc always passes an anonymous version script of its own. lld, which is rustc's default linker on x86-64
//! Linux, accepts a second, named one beside it as long as that one only declares nodes; the symbols name their node
//! themselves (`src/export.rs`). GNU ld refuses the pair, and the link then fails loudly.

use std::env;
use std::path::PathBuf;

fn main() {
    let dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    println!("cargo:rerun-if-changed=nodes.map");
    println!("cargo:rerun-if-changed=build.rs");
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
}
