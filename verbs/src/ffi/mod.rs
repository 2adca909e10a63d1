//! The boundary to C: conventions of exported functions, objects behind C pointers, errno values, and children of `fork(2)`.

pub(crate) mod acks;
mod boundary;
pub(crate) mod errno;
pub(crate) mod fork;
pub(crate) mod turns;

pub(crate) use boundary::{
    Attempt, CPointer, Facade, Object, entry, errno_value, is_fatal, is_nonblocking, load,
    minus_one, pointer, store, waiting,
};
