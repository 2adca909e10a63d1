//! An end of an arena's lanes.

use std::net::Shutdown;
use std::sync::Arc;

use dgiwarp_memory::lane::{LaneInput, LaneOutput};
use socket2::Socket;

use crate::driver::same_host::budget::Share;
use crate::driver::same_host::grants::CopyEnds;

/// The Unix socket of two ends that have lanes: shut down when this end goes, which ends the lanes for the other one too.
#[derive(Debug)]
pub(crate) struct Link(Arc<Socket>);

impl Link {
    pub(crate) const fn new(socket: Arc<Socket>) -> Self {
        Self(socket)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // It fails where the other end is gone.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// The ends of an arena's lanes, and a share of the budget.
#[derive(Debug)]
pub(crate) struct LaneEnds {
    pub(crate) output: LaneOutput,
    pub(crate) input: LaneInput,
    /// Of the memory of the arena, without the ring that the peer sends in.
    pub(crate) share: Share,
    /// `None` where a connection's end is that of the lanes.
    pub(crate) link: Option<Link>,
    /// For one-sided copies, where the kernel tells the peer's process.
    pub(crate) copies: Option<CopyEnds>,
}

impl LaneEnds {
    pub(crate) fn new((output, input): (LaneOutput, LaneInput), share: Share) -> Self {
        Self {
            output,
            input,
            share,
            link: None,
            copies: None,
        }
    }

    pub(crate) fn with_link(self, link: Option<Link>) -> Self {
        Self { link, ..self }
    }

    pub(crate) fn with_copies(self, copies: Option<CopyEnds>) -> Self {
        Self { copies, ..self }
    }
}
