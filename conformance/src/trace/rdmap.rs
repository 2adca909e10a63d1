//! Requests and what answers them: RDMA Reads (RFC 5040 §5.2) and atomic operations (RFC 7306 §5.2).

use std::collections::VecDeque;

use super::coverage::{Coverage, Whole};
use super::{Report, rules};
use crate::wire::ddp::{ReadRequest, word};

/// Requests that are kept. No depth is above 14 bits.
const MOST: usize = 1 << 14;
const READ_REQUEST: u64 = 28;
const ATOMIC_REQUEST: u64 = 52;
const ATOMIC_RESPONSE: u64 = 12;

/// Requests of one end without an answer, in order.
#[derive(Debug)]
pub(super) struct Answers {
    reads: VecDeque<ReadRequest>,
    /// The request that was answered last.
    answered: Option<ReadRequest>,
    /// STag, TO and octets that are left of a request whose Response was too short.
    rest: Option<(u32, u64, u64)>,
    atomics: VecDeque<u32>,
    /// Whether all requests were seen.
    known: bool,
    /// The most Reads that may be outstanding.
    depth: Option<u16>,
}

impl Answers {
    pub(super) fn new() -> Self {
        Self {
            reads: VecDeque::new(),
            answered: None,
            rest: None,
            atomics: VecDeque::new(),
            known: true,
            depth: None,
        }
    }

    /// Requests or answers may be missing.
    pub(super) fn forget(&mut self) {
        self.known = false;
        self.answered = None;
        self.rest = None;
        self.reads.clear();
        self.atomics.clear();
    }

    /// The peer serves so many Reads at once.
    pub(super) fn limit(&mut self, depth: u16) {
        self.depth = Some(depth);
    }

    /// A Read Request of this length; `octets` are empty if it came in several segments.
    pub(super) fn read(&mut self, octets: &[u8], length: u64, report: &mut Report<'_>) {
        let request = ReadRequest::parse(octets);
        let (Some(request), READ_REQUEST) = (request, length) else {
            report(rules::RDMAP_READ_HEADER, format!("{length} octets"));
            return self.forget();
        };
        if !self.known {
            return;
        }
        self.reads.push_back(request);
        if self.reads.len() > MOST {
            return self.forget();
        }
        if let Some(depth) = self.depth
            && self.reads.len() > usize::from(depth)
        {
            let detail = format!(
                "{} Reads are outstanding, and the peer serves {depth}",
                self.reads.len()
            );
            report(rules::ENHANCED_DEPTH, detail);
        }
    }

    /// A Read Response of this length is complete; `place` says where it begins, unless it is empty.
    pub(super) fn answered(
        &mut self,
        place: Option<(u32, u64)>,
        length: u64,
        report: &mut Report<'_>,
    ) {
        if !self.known {
            return;
        }
        let fits = |request: &ReadRequest| {
            u64::from(request.size) == length
                && place.is_none_or(|place| place == (request.sink_stag, request.sink_to))
        };
        if self.goes_on(place, length) {
            return;
        }
        let oldest = self.reads.front().copied();
        if let Some(oldest) = oldest.filter(fits) {
            self.reads.pop_front();
            self.answered = Some(oldest);
            return;
        }
        let Some(oldest) = oldest else {
            return report(
                rules::RDMAP_RESPONSE,
                format!("no request waits for one of {length} octets"),
            );
        };
        if let Some((stag, to)) = place
            && self.answered.as_ref().is_some_and(fits)
        {
            let detail = format!("{length} octets to STag {stag:#x}, TO {to:#x} once more");
            return report(rules::RDMAP_RESPONSE, detail);
        }
        let at = place.map_or_else(String::new, |(stag, to)| {
            format!(" to STag {stag:#x}, TO {to:#x}")
        });
        if let Some(index) = self.reads.iter().position(fits) {
            self.reads.remove(index);
            let detail = format!(
                "{length} octets{at} answer request {} of those that wait",
                index + 1
            );
            return report(rules::RDMAP_RESPONSE_ORDER, detail);
        }
        self.reads.pop_front();
        let short = place == Some((oldest.sink_stag, oldest.sink_to));
        if let Some(left) = u64::from(oldest.size).checked_sub(length)
            && short
        {
            self.rest = Some((oldest.sink_stag, oldest.sink_to.wrapping_add(length), left));
        }
        let detail = format!(
            "{length} octets{at}, and the oldest request is for {} to STag {:#x}, TO {:#x}",
            oldest.size, oldest.sink_stag, oldest.sink_to
        );
        report(rules::RDMAP_RESPONSE_PLACE, detail);
    }

    /// Whether a Response goes on where one was too short, which is a finding already.
    fn goes_on(&mut self, place: Option<(u32, u64)>, length: u64) -> bool {
        let Some((stag, to, left)) = self.rest.take() else {
            return false;
        };
        let goes_on = place == Some((stag, to)) && (1..=left).contains(&length);
        if goes_on && length < left {
            self.rest = Some((stag, to.wrapping_add(length), left - length));
        }
        goes_on
    }

    /// A Read Response is complete of which nobody knows where its octets belong.
    pub(super) fn answered_somewhere(&mut self) {
        self.answered = self.reads.pop_front();
    }

    /// Takes the octets of a Response without a last segment for the answer to the oldest request; false if they are not that.
    pub(super) fn took(&mut self, stag: u32, octets: &Coverage) -> bool {
        let (from, behind) = octets.span();
        let right = |request: &ReadRequest| {
            request.size > 0
                && (request.sink_stag, request.sink_to) == (stag, from)
                && u64::from(request.size) == behind - from
        };
        let all = self.reads.front().is_some_and(right) && octets.whole(None) != Whole::Broken;
        if all {
            self.answered_somewhere();
        }
        all
    }

    /// An Atomic Request.
    pub(super) fn atomic(&mut self, octets: &[u8], length: u64, report: &mut Report<'_>) {
        let operation = word(octets, 0).map(|word| word & 0xf);
        if length != ATOMIC_REQUEST {
            report(rules::ATOMIC_REQUEST, format!("{length} octets"));
            return self.forget();
        }
        // RFC 7306 §5.2.1, figure 5: FetchAdd and CmpSwap.
        if !matches!(operation, Some(0 | 2)) {
            report(
                rules::ATOMIC_REQUEST,
                format!("the operation is {operation:?}"),
            );
        }
        if self.known {
            self.atomics.push_back(word(octets, 4).unwrap_or(0));
            if self.atomics.len() > MOST {
                self.forget();
            }
        }
    }

    /// An Atomic Response to one of the requests.
    pub(super) fn atomic_answered(&mut self, octets: &[u8], length: u64, report: &mut Report<'_>) {
        if length != ATOMIC_RESPONSE {
            report(rules::ATOMIC_RESPONSE, format!("{length} octets"));
            return self.forget();
        }
        if !self.known {
            return;
        }
        let identifier = word(octets, 0).unwrap_or(0);
        match self.atomics.pop_front() {
            Some(oldest) if oldest == identifier => {}
            oldest => {
                let detail = format!(
                    "identifier {identifier:#x}, and that of the oldest request is {oldest:#x?}"
                );
                report(rules::ATOMIC_RESPONSE, detail);
            }
        }
    }
}
