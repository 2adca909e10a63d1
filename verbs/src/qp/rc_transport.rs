//! Transports of reliable connected queue pairs.

use std::fmt;
use std::str::FromStr;

/// Carrier of the reliable connected queue pairs that programs create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum RcTransport {
    /// iWARP over TCP, which every RNIC has.
    #[default]
    Tcp,
    /// Reliable datagrams over UDP, for lossy networks: both ends are dgiwarp. Of queue pairs that rdma_cm connects, those with peers that agree.
    Rd,
}

impl fmt::Display for RcTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Rd => "rd",
        })
    }
}

/// Environment variable of the transport.
pub(crate) const VARIABLE: &str = "DGIWARP_RC";

/// Help text.
pub(crate) const HELP: &str = "transport of reliable connected queue pairs: tcp (iWARP, for all peers) or rd (reliable datagrams over UDP, which keep their rate where \
     packets are lost; both ends need the setting, except that rdma_cm takes tcp where one has not)";

impl FromStr for RcTransport {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Self, UnknownTransport> {
        match text {
            "" | "tcp" => Ok(Self::Tcp),
            "rd" => Ok(Self::Rd),
            _ => Err(UnknownTransport),
        }
    }
}

/// Error: no transport has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownTransport;

/// The transport of the environment; the default if the variable is unset or invalid.
pub(crate) fn present() -> RcTransport {
    let text = std::env::var(VARIABLE).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_transports_convert_both_ways() {
        for transport in [RcTransport::Tcp, RcTransport::Rd] {
            assert_eq!(transport.to_string().parse(), Ok(transport));
        }
        assert_eq!("".parse(), Ok(RcTransport::default()));
        assert_eq!("udp".parse::<RcTransport>(), Err(UnknownTransport));
    }
}
