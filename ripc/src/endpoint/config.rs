//! Settings of an endpoint.

use std::net::SocketAddr;
use std::time::Duration;

use super::secure::rights::{Identity, Rights};
use crate::engine::credit::cost;
use crate::error::Error;
use crate::resolver::group::Group;
use crate::security::Security;
use crate::security::token::{Token, TokenSecret};
use crate::wire::hello::MESSAGE_LENGTHS;

/// Limits of what an endpoint keeps and takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Longest message, in octets, 1,024 to 65,536. Default 8,192.
    pub longest: usize,
    /// First grant to each peer, in octets, at least 128 KiB and twice the cost of the longest message. Default 1 MiB.
    pub credit: u64,
    /// First grant to each stream of a call, in octets, at least 4 KiB. Default 128 KiB.
    pub stream: u32,
    /// Longest item that is taken, in octets. Default 1 GiB.
    pub item: u64,
    /// Octets of items being read, of all peers. Default 2 GiB.
    pub reading: u64,
    /// Peers with a connection. Default 4,096.
    pub peers: usize,
    /// Calls that wait for a thread. Default 1,024.
    pub waiting: usize,
    /// Octets of free memory that are kept for long items. Default 256 MiB.
    pub pool: usize,
    /// Silence after which a connection with pending calls is over. Default 5 s.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            longest: 8192,
            credit: 1 << 20,
            stream: 128 << 10,
            item: 1 << 30,
            reading: 2 << 30,
            peers: 4096,
            waiting: 1024,
            pool: 256 << 20,
            silence: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// The limits within their ranges.
    pub(crate) fn checked(mut self) -> Self {
        let (least, most) = MESSAGE_LENGTHS;
        let [least, most] = [least, most].map(|it| usize::try_from(it).unwrap_or(usize::MAX));
        self.longest = self.longest.clamp(least, most);
        // Half of it is announced late, and the longest message has to have room in the other half.
        self.credit = self.credit.max(128 << 10).max(2 * cost(self.longest));
        self.stream = self.stream.max(4 << 10);
        self
    }
}

/// Settings of an endpoint.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Address and TCP port to listen on, port 0 for one of the system's choice. `None`, the default: it only calls.
    pub listen: Option<SocketAddr>,
    /// Threads that execute calls, 1 to 256. Default 2, or the processors where there are more.
    pub threads: usize,
    /// Group in which services are announced and resolved. `None`: neither. Default [`Group::default`].
    pub group: Option<Group>,
    /// Key of the endpoint, and keys of its peers. `None`, the default: connections without a handshake.
    pub security: Option<Security>,
    /// Secret of tokens for all services of the endpoint, without which none is called. `None`, the default: services need none, but for those of
    /// [`Endpoint::require_tokens`](crate::Endpoint::require_tokens).
    pub token_secret: Option<TokenSecret>,
    /// Tokens that the endpoint presents to servers. Default none.
    pub tokens: Vec<Token>,
    /// Limits.
    pub limits: Limits,
    /// The device.
    pub device: dgiwarp::Config,
}

impl Default for Config {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            listen: None,
            threads: processors.max(2),
            group: Some(Group::default()),
            security: None,
            token_secret: None,
            tokens: Vec::new(),
            limits: Limits::default(),
            device: dgiwarp::Config::default(),
        }
    }
}

impl Config {
    /// The defaults, listening on this address.
    #[must_use]
    pub fn listening(address: SocketAddr) -> Self {
        Self {
            listen: Some(address),
            ..Self::default()
        }
    }

    /// The settings without a group: services are neither announced nor resolved in it.
    #[must_use]
    pub fn without_group(mut self) -> Self {
        self.group = None;
        self
    }

    /// The settings with a key: connections have a handshake.
    #[must_use]
    pub fn secured(mut self, security: Security) -> Self {
        self.security = Some(security);
        self
    }

    pub(super) fn rights(&self) -> Result<Rights, Error> {
        let identity = self.security.clone().map(Identity::new).transpose()?;
        let mut rights = Rights::new(identity, self.token_secret.clone());
        for token in &self.tokens {
            rights.add_token(token.clone());
        }
        Ok(rights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::credit::Credit;

    /// Before CREDIT is due there is room for the longest message, whatever came before it.
    #[test]
    fn the_longest_message_never_waits_for_credit_that_is_not_due() {
        for longest in [1024, 8192, 65_536] {
            let mut limits = Limits::default();
            (limits.longest, limits.credit) = (longest, 0);
            let window = limits.checked().credit;
            let mut sender = Credit::new(window, 0);
            let mut receiver = Credit::new(0, window);
            loop {
                receiver.consume(cost(1));
                if receiver.is_due() {
                    break;
                }
                assert!(sender.charge(cost(1), false));
            }
            assert!(sender.charge(cost(longest), false), "{longest}");
        }
    }
}
