//! The macro that gives a Rust function a C name with a symbol version.
//!
//! A `.symver` directive binds `__dg_NAME` to `NAME@@NODE`; the label is one direct jump to the function. Label and
//! directive stand in one assembly block, so codegen units, LTO and section garbage collection cannot separate them.
//! The jump is paid by calls that go through an exported name only: posting and polling go through the tables in
//! the context and never touch it.

/// One exported symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Name as C programs use it.
    pub name: &'static str,
    /// Version node, for example `IBVERBS_1.1`.
    pub node: &'static str,
    /// What stands behind the name, as written in the table.
    pub target: &'static str,
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {target}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {target}"
    };
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "dgiwarp-verbs exports its symbols through one jump instruction, written for x86-64 and aarch64 only"
);

/// Exports functions: `export! { pub TABLE; "NODE" { "name" => path::to::function; } }` also defines `TABLE`, the
/// list of what it exported.
macro_rules! export {
    ($(#[$doc:meta])* pub $table:ident; $($node:literal { $($name:literal => $target:path;)* })*) => {
        $(#[$doc])*
        pub const $table: &[$crate::export::Export] = &[$($(
            $crate::export::Export { name: $name, node: $node, target: stringify!($target) },
        )*)*];
        $($(
            std::arch::global_asm!(
                ".pushsection .text,\"ax\",@progbits",
                ".p2align 4",
                concat!(".globl __dg_", $name),
                concat!(".type __dg_", $name, ",@function"),
                concat!("__dg_", $name, ":"),
                $crate::export::jump!(),
                concat!(".size __dg_", $name, ", . - __dg_", $name),
                concat!(".symver __dg_", $name, ", ", $name, "@@", $node),
                ".popsection",
                target = sym $target,
            );
        )*)*
    };
}

pub(crate) use {export, jump};
