//! Claims: the private data of out-of-band connections (`rfc-notes/rc-oob-connect.md`), and which end connects.

use std::net::{IpAddr, Ipv6Addr};

/// Octets of a claim.
const CLAIM: usize = 40;
/// Octets of a refusal.
const REFUSAL: usize = 6;
const MAGIC: [u8; 4] = *b"DGiP";
const VERSION: u8 = 1;
/// Flag: the PSN of the sender's own messages is valid.
const HAS_SQ_PSN: u8 = 1;

/// The peer of an out-of-band connection, as `ibv_modify_qp(3)` to ready-to-receive gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairing {
    /// The peer's address, which its GID or LID names.
    pub peer: IpAddr,
    /// The interface of a link-local address, else 0.
    pub scope_id: u32,
    /// The peer's QPN.
    pub peer_qpn: u32,
    /// The local address that the peer uses for this end.
    pub source: IpAddr,
    /// PSN of the peer's first message, 24 bits. It differs between two lives of a QP.
    pub rq_psn: u32,
    /// IRD of this end.
    pub ird: u16,
}

/// The GID of an address: an IPv4 address in its mapped form.
fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Pairing {
    /// Whether this end connects: the one with the smaller GID, or with equal GIDs the smaller QPN.
    pub fn initiates(&self, qpn: u32) -> bool {
        (gid(self.source), qpn) < (gid(self.peer), self.peer_qpn)
    }

    /// Whether both ends are the same QP.
    pub fn is_itself(&self, qpn: u32) -> bool {
        self.peer_qpn == qpn && self.peer == self.source
    }

    /// The claim of this end.
    pub fn claim(&self, qpn: u32, sq_psn: Option<u32>) -> Claim {
        Claim {
            qpn,
            dest_qpn: self.peer_qpn,
            gid: gid(self.source),
            rq_psn: self.rq_psn,
            sq_psn,
        }
    }

    /// Whether `claim` is of the peer's QP and names this one. PSNs are compared where both are valid.
    pub fn matches(&self, claim: &Claim, qpn: u32, sq_psn: Option<u32>) -> bool {
        let agree = |theirs: Option<u32>, ours: Option<u32>| match (theirs, ours) {
            (Some(theirs), Some(ours)) => theirs == ours,
            (_, None) | (None, _) => true,
        };
        claim.qpn == self.peer_qpn
            && claim.dest_qpn == qpn
            && claim.gid == gid(self.peer)
            && agree(claim.sq_psn, Some(self.rq_psn))
            && agree(Some(claim.rq_psn), sq_psn)
    }
}

/// Private data of MPA Requests and Replies of out-of-band connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// QPN of its sender.
    pub qpn: u32,
    /// QPN of the QP to connect to.
    pub dest_qpn: u32,
    pub(super) gid: [u8; 16],
    pub(super) rq_psn: u32,
    pub(super) sq_psn: Option<u32>,
}

impl Claim {
    /// The claim's octets.
    pub fn emit(&self) -> [u8; CLAIM] {
        let mut octets = [0; CLAIM];
        let flags = if self.sq_psn.is_some() { HAS_SQ_PSN } else { 0 };
        octets[..4].copy_from_slice(&MAGIC);
        octets[4..8].copy_from_slice(&[VERSION, flags, 0, 0]);
        octets[8..12].copy_from_slice(&self.qpn.to_be_bytes());
        octets[12..16].copy_from_slice(&self.dest_qpn.to_be_bytes());
        octets[16..32].copy_from_slice(&self.gid);
        octets[32..36].copy_from_slice(&self.rq_psn.to_be_bytes());
        octets[36..].copy_from_slice(&self.sq_psn.unwrap_or(0).to_be_bytes());
        octets
    }

    /// The claim at the front of `octets`; `None` where they begin with none of this version. Further octets are ignored.
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let octets = octets.first_chunk::<CLAIM>()?;
        let word = |at: usize| {
            let octets = octets[at..].first_chunk().copied().unwrap_or_default();
            u32::from_be_bytes(octets)
        };
        if octets[..4] != MAGIC || octets[4] != VERSION {
            return None;
        }
        let gid = octets[16..].first_chunk().copied()?;
        Some(Self {
            qpn: word(8),
            dest_qpn: word(12),
            gid,
            rq_psn: word(32),
            sq_psn: (octets[5] & HAS_SQ_PSN != 0).then(|| word(36)),
        })
    }

    /// Whether the claim is of a QP that is to be connected to itself.
    pub fn is_of_itself(&self, pairing: &Pairing) -> bool {
        pairing.is_itself(self.qpn)
    }

    /// Address of its sender, as claimed.
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.gid).to_canonical()
    }
}

/// Reason to reject a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The private data is no claim, or names no QP of this device.
    Unknown = 1,
    /// The QP has another peer, or another life of this one.
    Mismatch = 2,
    /// The QP is or was connected.
    Taken = 3,
}

impl Refusal {
    /// Private data of the rejecting Reply.
    pub fn emit(self) -> [u8; REFUSAL] {
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, VERSION, self as u8]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairing() -> Pairing {
        Pairing {
            peer: "192.0.2.2".parse().unwrap(),
            scope_id: 0,
            peer_qpn: 0x0090_0001,
            source: "192.0.2.1".parse().unwrap(),
            rq_psn: 7,
            ird: 16,
        }
    }

    /// The connection as its peer has it.
    fn reverse(sq_psn: u32) -> Pairing {
        let own = pairing();
        Pairing {
            peer: own.source,
            peer_qpn: 0x0080_0002,
            source: own.peer,
            rq_psn: sq_psn,
            ..own
        }
    }

    #[test]
    fn the_octets_are_where_the_figure_has_them() {
        let octets = pairing().claim(0x0080_0002, Some(9)).emit();
        assert_eq!(octets[..8], *b"DGiP\x01\x01\0\0");
        assert_eq!(octets[8..16], [0, 0x80, 0, 2, 0, 0x90, 0, 1]);
        assert_eq!(
            octets[16..32],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]
        );
        assert_eq!(octets[32..], [0, 0, 0, 7, 0, 0, 0, 9]);
        assert_eq!(Refusal::Mismatch.emit(), *b"DGiP\x01\x02");
    }

    #[test]
    fn claims_survive_and_nothing_else_parses() {
        for sq_psn in [None, Some(0), Some(0x00ff_ffff)] {
            let claim = pairing().claim(0x0080_0002, sq_psn);
            assert_eq!(Claim::parse(&claim.emit()), Some(claim));
        }
        let octets = pairing().claim(1, None).emit();
        assert_eq!(Claim::parse(&octets[..CLAIM - 1]), None);
        for at in 0..5 {
            let mut wrong = octets;
            wrong[at] ^= 1;
            assert_eq!(Claim::parse(&wrong), None, "octet {at}");
        }
    }

    #[test]
    fn exactly_one_end_connects() {
        let (own, other) = (pairing(), reverse(0));
        assert!(own.initiates(0x0080_0002));
        assert!(!other.initiates(0x0090_0001));
        let here = "127.0.0.1".parse().unwrap();
        let (low, high) = (
            Pairing {
                peer: here,
                source: here,
                ..own
            },
            Pairing {
                peer: here,
                source: here,
                ..other
            },
        );
        assert!(low.initiates(0x0080_0002) && !high.initiates(0x0090_0001));
        assert!(!low.is_itself(0x0080_0002) && low.is_itself(0x0090_0001));
    }

    #[test]
    fn whatever_differs_is_refused() {
        let own = pairing();
        let good = reverse(9).claim(0x0090_0001, Some(7));
        assert!(own.matches(&good, 0x0080_0002, Some(9)));
        assert!(
            own.matches(&good, 0x0080_0002, None),
            "ours is not known yet"
        );
        assert!(own.matches(
            &Claim {
                sq_psn: None,
                ..good
            },
            0x0080_0002,
            Some(9)
        ));
        for wrong in [
            Claim { qpn: 1, ..good },
            Claim {
                dest_qpn: 1,
                ..good
            },
            Claim {
                gid: gid(own.source),
                ..good
            },
            Claim { rq_psn: 8, ..good },
            Claim {
                sq_psn: Some(8),
                ..good
            },
        ] {
            assert!(!own.matches(&wrong, 0x0080_0002, Some(9)), "{wrong:?}");
        }
    }
}
