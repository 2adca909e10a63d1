//! The boundary to C: conventions of exported functions, objects behind C pointers, errno values, `fork(2)`.

mod boundary;
pub(crate) mod errno;
pub(crate) mod fork;
pub(crate) mod live;
mod object;
pub(crate) mod own_socket;
pub(crate) mod thread_order;
pub(crate) mod unacked;
pub(crate) mod wr_lock;

pub(crate) use boundary::{
    Attempt, check_memory, data_path_entry, entry, errno_value, is_fatal, is_nonblocking, load,
    minus_one, minus_one_making, minus_one_on_data_path, on_fatal, pointer, poll, store,
    store_prefix, waiting,
};
pub(crate) use object::{CPointer, Facade, Object};
