//! `repr(C)` mirrors of the structs in rdma-core's `infiniband/verbs.h`, `infiniband/efadv.h` and `rdma/rdma_cma.h`, release 44 (Debian 12),
//! and in our own `infiniband/dgiwarpdv.h`.
//!
//! Posting and polling are inline functions of `verbs.h` that call through `ibv_context.ops`: these layouts *are* the
//! ABI. Sizes and offsets are asserted at compile time for 64-bit targets, and a test compares [`LAYOUTS`] with the C
//! compiler's layouts of the installed headers. Names and field names are the headers'.

#![allow(
    missing_docs,
    reason = "the man pages of rdma-core and our own header document these structs; a second text would drift from them"
)]
#![allow(
    missing_debug_implementations,
    reason = "most hold raw pointers that mean nothing when printed"
)]

mod cm;
mod context;
mod device;
mod dv;
mod efa;
mod object;
mod work;

pub use cm::*;
pub use context::*;
pub use device::*;
pub use dv::*;
pub use efa::*;
pub use object::*;
pub use work::*;

/// Size and field offsets of one struct, as this crate has them.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Type in C, for example `struct ibv_wc`.
    pub c_type: &'static str,
    /// `sizeof`, in bytes.
    pub size: usize,
    /// Field name and `offsetof`, in bytes.
    pub fields: &'static [(&'static str, usize)],
}

/// Asserts `size` and offsets at compile time, and defines a table of [`Layout`]. The numbers are those of x86-64: elsewhere a mutex may be longer, and the
/// test that compares the table with the C compiler's checks them.
macro_rules! layouts {
    ($(#[$doc:meta])* $table:ident: $($kind:ident $name:ident = $size:literal { $($field:ident @ $offset:literal),* $(,)? })*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            const _: () = {
                assert!(size_of::<$name>() == $size);
                $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
            };
        )*
        $(#[$doc])*
        pub const $table: &[$crate::abi::Layout] = &[$(
            $crate::abi::Layout {
                c_type: concat!(stringify!($kind), " ", stringify!($name)),
                size: size_of::<$name>(),
                fields: &[$((stringify!($field), std::mem::offset_of!($name, $field))),*],
            },
        )*];
    };
}
pub(crate) use layouts;

/// Every mirrored struct, by file.
pub const LAYOUTS: &[&[Layout]] = &[
    DEVICE_LAYOUTS,
    CONTEXT_LAYOUTS,
    OBJECT_LAYOUTS,
    WORK_LAYOUTS,
    CM_LAYOUTS,
    DIRECT_LAYOUTS,
    EFA_LAYOUTS,
];
