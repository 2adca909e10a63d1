//! Files: a root that names cannot leave, and source and sink of trees beneath it.

mod attributes;
mod filter;
mod partial;
mod prune;
mod root;
mod staging;
mod tree_sink;
mod tree_source;

pub use filter::Filter;
pub use root::{Metadata, Root};
pub use tree_sink::{TreeSink, TreeSinkOptions};
pub use tree_source::{Item, TreeSource};

use std::io;

use attributes::NotSet;
use nix::errno::Errno;

use crate::engine::Failure;
use crate::wire::Status;

/// A failure of the file system, with the name that it is about.
pub(crate) fn failure(what: &str, error: &io::Error) -> Failure {
    let source = error.get_ref();
    if let Some(not_set) = source.and_then(|it| it.downcast_ref::<NotSet>()) {
        return not_set.failure(what);
    }
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
    let (status, text) = match errno {
        Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => (Status::NoSpace, "no space"),
        Errno::EACCES | Errno::EPERM | Errno::EROFS => (Status::Permission, "not permitted"),
        Errno::EXDEV => (Status::Name, "the name leaves the root"),
        Errno::ELOOP | Errno::ENAMETOOLONG | Errno::EILSEQ => (Status::Name, "not a usable name"),
        Errno::EWOULDBLOCK | Errno::ETXTBSY => (Status::Busy, "in use by another transfer"),
        _ => (Status::Failed, "failed"),
    };
    Failure::new(status, format!("{what}: {text} ({error})"))
}
