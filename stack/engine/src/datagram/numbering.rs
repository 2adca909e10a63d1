//! Headers of messages, with the numbers that distinguish them (§3).

use dgiwarp_ddp::{Msn, STag, TaggedOffset};
use dgiwarp_rdmap::datagram::Cookie;
use dgiwarp_rdmap::datagram::segment::{Prefix, Template};
use dgiwarp_rdmap::wire::{Extension, Flags};

use super::config::Associations;
use super::transmit::SendWqe;
use crate::types::Operation;

/// Count of a QP's plain Sends; the other messages are numbered by association.
#[derive(Debug)]
pub(super) struct Numbering {
    msn: Msn,
}

impl Numbering {
    pub(super) fn new(msn: u32) -> Self {
        Self { msn: Msn::new(msn) }
    }

    /// Headers of the next plain Send, which [`took_send`](Self::took_send) comes behind.
    #[inline]
    pub(super) fn next_send(&self, qkey: u32, solicited: bool) -> Template {
        Template::Send {
            qkey,
            msn: self.msn,
            solicited,
        }
    }

    /// The next plain Send was sent.
    #[inline]
    pub(super) fn took_send(&mut self) {
        self.msn = self.msn.next();
    }

    /// Headers of a message, made at the first call, and made again where the path has become too small for a plain Send.
    #[inline]
    pub(super) fn prefix<'a>(
        &mut self,
        made: &'a mut Option<Prefix>,
        message: &SendWqe,
        mulpdu: u16,
        associations: &mut Associations,
    ) -> &'a Prefix {
        let keeps = |made: &Prefix| fits(made.length(), made.template(), message.length, mulpdu);
        if !made.as_ref().is_some_and(keeps) {
            *made = None;
        }
        made.get_or_insert_with(|| {
            Prefix::new(
                self.template(message, mulpdu, associations),
                cookie_of(message),
            )
        })
    }

    #[inline(always)]
    fn template(
        &mut self,
        wqe: &SendWqe,
        mulpdu: u16,
        associations: &mut Associations,
    ) -> Template {
        let flags = |immediate: Option<u32>| {
            Flags::empty()
                .with(Flags::IMMEDIATE, immediate.is_some())
                .with(Flags::SOLICITED, wqe.solicited)
                .with(Flags::WRITE, wqe.unrecorded)
        };
        let mut extension = |immediate: Option<u32>| {
            let (epoch, number) = associations.number(wqe.peer, wqe.route.is_group());
            Extension {
                flags: flags(immediate),
                epoch,
                number,
                length: wqe.length,
                offset: 0,
                immediate: immediate.unwrap_or(0),
            }
        };
        match wqe.operation {
            Operation::Send { immediate } => {
                let plain = self.next_send(wqe.qkey, wqe.solicited);
                if immediate.is_none() && fits(plain.header_len(), &plain, wqe.length, mulpdu) {
                    self.took_send();
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
