//! Datagrams as one line of text.

use core::fmt;

use super::{Datagram, Exchange, Extension, Lookup, Segment, flag, opcode};
use crate::wire::ddp::{Place, Terminate};

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.opcode() {
            opcode::READ_REQUEST => "RDMA Read Request",
            opcode::READ_RESPONSE => "RDMA Read Response",
            opcode::SEND => "Send",
            opcode::SEND_SE => "Send with SE",
            opcode::TERMINATE => "Terminate",
            opcode::SEGMENTED_SEND => "Segmented Send",
            opcode::WRITE_RECORD => match self.extension {
                Some(extension) if extension.flags & flag::WRITE != 0 => "UC Write",
                _ => "Write-Record",
            },
            _ => "reserved opcode",
        };
        write!(f, "{name}, {} octets", self.payload.len())?;
        match self.place {
            Place::Tagged { stag, to } => write!(f, ", STag {stag:#x}, TO {to:#x}")?,
            Place::Untagged {
                qn: 0,
                rsvd,
                msn,
                mo,
            } => {
                write!(f, ", Q_Key {rsvd:#x}, MSN {msn:#x}, MO {mo}")?;
            }
            Place::Untagged { rsvd, qn, msn, .. } => {
                write!(f, ", QN {qn}, epoch {rsvd:#x}, MSN {msn:#x}")?;
            }
        }
        if let Some(extension) = self.extension {
            write!(f, ", {extension}")?;
        }
        if let Some(cookie) = self.cookie {
            write!(f, ", cookie {cookie:#x}")?;
        }
        if let Some(terminate) = self.terminate() {
            write!(f, ", {terminate}")?;
        }
        if !self.is_last() {
            f.write_str(", not the last")?;
        }
        Ok(())
    }
}

impl Segment {
    /// The Terminate that it is.
    #[must_use]
    pub fn terminate(&self) -> Option<Terminate> {
        (self.opcode() == opcode::TERMINATE).then(|| Terminate::parse(&self.payload))?
    }
}

impl fmt::Display for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "epoch {:#x}, message {:#x}, offset {} of {}",
            self.epoch, self.number, self.offset, self.length
        )?;
        let flags = [(flag::SOLICITED, "solicited"), (flag::WRITE, "no record")];
        if self.flags & flag::IMMEDIATE != 0 {
            write!(f, ", immediate {:#x}", self.immediate)?;
        }
        for (_, name) in flags.iter().filter(|(bit, _)| self.flags & bit != 0) {
            write!(f, ", {name}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_invitation() {
            let token = u128::from(self.nonce) << 64 | u128::from(self.cookie);
            return write!(f, "invitation to share memory, token {token:030x}");
        }
        let name = if self.kind == 1 { "request" } else { "answer" };
        write!(
            f,
            "cookie {name}, epoch {:#x}, nonce {:#x}",
            self.epoch, self.nonce
        )?;
        if self.kind != 1 {
            write!(f, ", cookie {:#x}", self.cookie)?;
        }
        Ok(())
    }
}

impl fmt::Display for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            1 => "lookup",
            2 => "answer",
            3 => "reject",
            4 => "waiting",
            5 => "port query",
            6 => "port answer",
            _ => "unknown type",
        };
        write!(
            f,
            "service {name}, port {}, transaction {:#x}",
            self.port, self.transaction
        )?;
        match self.kind {
            3 => write!(f, ", status {}", self.status)?,
            1 | 2 => write!(f, ", QPN {}, Q_Key {:#x}", self.qpn, self.qkey)?,
            6 => write!(f, ", TCP port {}", self.qpn)?,
            _ => {}
        }
        write!(f, ", {} octets of private data", self.private_data.len())
    }
}

impl fmt::Display for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(segment) => segment.fmt(f),
            Self::Exchange(exchange) => exchange.fmt(f),
            Self::Lookup(lookup) => lookup.fmt(f),
            Self::Reliable(reliable) => reliable.fmt(f),
        }
    }
}
