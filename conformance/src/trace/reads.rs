//! RDMA Reads over datagrams: what was asked for, and what answers it (Datagram §7.1, §6).

use std::net::SocketAddr;

use super::datagram::{Recent, Route};
use super::{Report, rules};
use crate::wire::datagram::{MOST, Segment};
use crate::wire::ddp::ReadRequest;

/// Requests of one Read that are kept.
const MOST_REQUESTS: usize = 4096;
/// The longest Read that is answered without a cookie: 18 + size octets are three times the 50 of the request.
const WITHOUT_COOKIE: u64 = 132;

/// One request: a chunk.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    from: u64,
    to: u64,
    cookie: bool,
}

/// The requests of one Read.
#[derive(Debug, Default)]
struct Asked {
    chunks: Vec<Chunk>,
    /// More than are kept.
    overflow: bool,
    /// All of them went to a group.
    to_group: bool,
}

/// All Reads: by requester and sink STag. The answer to a request to a group comes from another address.
#[derive(Debug, Default)]
pub(super) struct Reads(Recent<(SocketAddr, u32), Asked>);

impl Reads {
    pub(super) fn request(
        &mut self,
        route: Route,
        request: ReadRequest,
        (cookie, to_group): (bool, bool),
        report: &mut Report<'_>,
    ) {
        let end = request.sink_to.checked_add(request.size.into());
        let Some(to) = end.filter(|_| request.size <= MOST) else {
            let detail = format!("{} octets to TO {:#x}", request.size, request.sink_to);
            return report(rules::READ_REQUEST, detail);
        };
        let (asked, is_new) = self
            .0
            .entry((route.from, request.sink_stag), Asked::default());
        asked.to_group = to_group && (is_new || asked.to_group);
        if asked.chunks.len() < MOST_REQUESTS {
            asked.chunks.push(Chunk {
                from: request.sink_to,
                to,
                cookie,
            });
        } else {
            asked.overflow = true;
        }
    }

    pub(super) fn response(
        &mut self,
        route: Route,
        (stag, from): (u32, u64),
        segment: &Segment,
        report: &mut Report<'_>,
    ) {
        // Whose request is not in the file is not judged.
        let Some(asked) = self
            .0
            .get(&(route.to, stag))
            .filter(|asked| !asked.overflow)
        else {
            return;
        };
        if asked.to_group {
            return report(rules::GROUP_ANSWER, segment.to_string());
        }
        let to = from.saturating_add(u64::try_from(segment.payload.len()).unwrap_or(u64::MAX));
        let begun: Vec<_> = (asked.chunks.iter())
            .filter(|chunk| chunk.from == from || chunk.from < from && from < chunk.to)
            .collect();
        let around = || begun.iter().filter(|chunk| to <= chunk.to);
        // A Response that begins elsewhere or ends early may answer a request that is not in the file.
        if begun.is_empty() {
            return;
        }
        if around().next().is_none() {
            return report(
                rules::READ_RESPONSE,
                format!("more than was asked for: {segment}"),
            );
        }
        if !segment.is_last() && around().all(|chunk| chunk.to == to) {
            report(
                rules::READ_RESPONSE,
                format!("L is clear at the end: {segment}"),
            );
        }
        if around().all(|chunk| !chunk.cookie && chunk.to - chunk.from > WITHOUT_COOKIE) {
            report(rules::AMPLIFICATION, segment.to_string());
        }
    }
}
