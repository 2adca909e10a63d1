//! Headers of messages, with the epochs and numbers that distinguish them (§3).

use dgiwarp_ddp::{Msn, STag, TaggedOffset};
use dgiwarp_llp_udp::Peer;
use dgiwarp_rdmap::datagram::segment::{Prefix, Template};
use dgiwarp_rdmap::datagram::{Cookie, Numbers};
use dgiwarp_rdmap::wire::{Extension, Flags};

use super::epochs::Epochs;
use super::transmit::SendWqe;
use crate::types::Operation;

/// Epochs and counts of a QP's messages.
#[derive(Debug)]
pub(super) struct Numbering {
    epochs: Epochs,
    numbers: Numbers<Peer>,
    msn: Msn,
}

impl Numbering {
    pub(super) fn new(epochs: Epochs, numbers: Numbers<Peer>, msn: u32) -> Self {
        Self {
            epochs,
            numbers,
            msn: Msn::new(msn),
        }
    }

    /// Headers of a message, made at the first call, and made again where the path has become too small for a plain Send.
    #[inline]
    pub(super) fn prefix<'a>(
        &mut self,
        made: &'a mut Option<Prefix>,
        message: &SendWqe,
        mulpdu: u16,
    ) -> &'a Prefix {
        let keeps = |made: &Prefix| fits(made.length(), made.template(), message.length, mulpdu);
        if !made.as_ref().is_some_and(keeps) {
            *made = None;
        }
        made.get_or_insert_with(|| Prefix::new(self.template(message, mulpdu), cookie_of(message)))
    }

    #[inline(always)]
    fn template(&mut self, wqe: &SendWqe, mulpdu: u16) -> Template {
        let flags = |immediate: Option<u32>| {
            Flags::empty()
                .with(Flags::IMMEDIATE, immediate.is_some())
                .with(Flags::SOLICITED, wqe.solicited)
                .with(Flags::WRITE, wqe.unrecorded)
        };
        let mut extension = |immediate: Option<u32>| Extension {
            flags: flags(immediate),
            epoch: self.epochs.of(&wqe.route, wqe.peer),
            number: self.numbers.take(wqe.peer),
            length: wqe.length,
            offset: 0,
            immediate: immediate.unwrap_or(0),
        };
        match wqe.operation {
            Operation::Send { immediate } => {
                let plain = Template::Send {
                    qkey: wqe.qkey,
                    msn: self.msn,
                    solicited: wqe.solicited,
                };
                if immediate.is_none() && fits(plain.header_len(), &plain, wqe.length, mulpdu) {
                    self.msn = self.msn.next();
                    return plain;
                }
                Template::SegmentedSend {
                    qkey: wqe.qkey,
                    extension: extension(immediate),
                }
            }
            Operation::WriteRecord {
                rkey,
                remote_addr,
                immediate,
            } => Template::WriteRecord {
                stag: STag::new(rkey),
                base: TaggedOffset::new(remote_addr),
                extension: extension(immediate),
            },
            Operation::Read { .. } => unreachable!("the engine gives Reads to the requester"),
        }
    }
}

/// Whether a message can still go as it was meant to: the path may take less than it did, and a plain Send has one
/// segment.
#[inline]
fn fits(before: usize, template: &Template, length: u32, mulpdu: u16) -> bool {
    match template {
        Template::Send { .. } => before + length as usize <= usize::from(mulpdu),
        Template::SegmentedSend { .. } | Template::WriteRecord { .. } => true,
    }
}

/// The cookie that each segment of a message carries: only memory may ask for it.
fn cookie_of(wqe: &SendWqe) -> Option<Cookie> {
    match wqe.operation {
        Operation::WriteRecord { .. } => wqe.route.cookie(),
        Operation::Send { .. } | Operation::Read { .. } => None,
    }
}
