//! The Startup Phase: Request and Reply Frames and what they settle
//! (RFC 5044 §7.1, RFC 6581 §5 to §10).

mod datagrams;
mod enhanced;
mod frame;
mod negotiate;

pub use datagrams::DatagramTerms;
pub use enhanced::{Enhanced, ReadDepth, Rtr, RtrSet};
pub use frame::{
    ENHANCED_LEN, FrameKind, HEADER_LEN, MAX_PRIVATE_DATA, Revision, StartupFrame, StartupReader,
};
pub use negotiate::{
    Config, CrcPreference, Established, Negotiation, ReadDepths, Rejection, Request, Role,
};
pub(crate) use negotiate::{
    accept_reply, reject_reply, request_frame, settle, takes_request, terms_of,
};
