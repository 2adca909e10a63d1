//! Macro that exports Rust functions under C names with symbol versions.
//!
//! A `.symver` directive binds `__dg_NAME` to `NAME@@NODE`; the label is a direct jump to the function. Label and
//! directive are in one assembly block: codegen units, LTO and section garbage collection cannot separate them. Posting
//! and polling go through the tables of the context and never execute the jump.
//!
//! The block is a generic naked function, so its text is in the crate that instantiates it: the shared library (package
//! `dgiwarp-verbs-library`). Programs that use this crate as a library have neither these symbols nor the code behind
//! them.

/// One exported symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Name as C programs use it.
    pub name: &'static str,
    /// Version node, for example `IBVERBS_1.1`.
    pub node: &'static str,
    /// Implementation, as written in the table.
    pub target: &'static str,
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {}"
    };
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "dgiwarp-verbs exports its symbols through one jump instruction, written for x86-64 and aarch64 only"
);

/// Exports functions: `export! { pub TABLE, bound by bind; "NODE" { "name" => path::to::function; } }` defines `TABLE`,
/// the list of them, and `bind`, whose instance carries their symbols and is never called.
macro_rules! export {
    ($(#[$doc:meta])* pub $table:ident, bound by $bind:ident;
     $($node:literal { $($name:literal => $target:path;)* })*) => {
        $(#[$doc])*
        pub const $table: &[$crate::export::Export] = &[$($(
            $crate::export::Export { name: $name, node: $node, target: stringify!($target) },
        )*)*];

        #[allow(
            named_asm_labels,
            clippy::extra_unused_type_parameters,
            reason = "the labels are the symbols; the type says whose, and a second instance would not link"
        )]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $bind<Library>() {
            std::arch::naked_asm!(
                $($(
                    ".p2align 4",
                    concat!(".globl __dg_", $name),
                    concat!(".type __dg_", $name, ",@function"),
                    concat!("__dg_", $name, ":"),
                    $crate::export::jump!(),
                    concat!(".size __dg_", $name, ", . - __dg_", $name),
                    concat!(".symver __dg_", $name, ", ", $name, "@@", $node),
                )*)*
                $($(sym $target,)*)*
            )
        }
    };
}

pub(crate) use {export, jump};
