//! Tokens that a connection has presented, and connections that are not confirmed yet (`rfc-notes/ripc.md`, "Tokens", "Keys and handshake").

use std::collections::VecDeque;
use std::time::Duration;

use crate::wire::token::Claims;

/// Services with a token of a connection.
pub(crate) const PRESENTED: usize = 64;
/// Connections that are not confirmed.
pub(crate) const UNCONFIRMED: usize = 256;
/// Longest time until a connection is confirmed.
pub(crate) const CONFIRMATION: Duration = Duration::from_secs(4);

/// Why a call or message of a peer is not for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denial {
    #[error("the service requires a token, and none was presented on this connection")]
    Missing,
    #[error("the token is not of its format")]
    Malformed,
    #[error("the token is not of this service, or was changed")]
    Forged,
    #[error("the token is past its end")]
    Expired,
    #[error("the token is for another client")]
    OtherClient,
    #[error("the token is not for this method")]
    Method,
}

impl Denial {
    /// Whether the peer is known, and may not do it.
    pub(crate) fn is_permission(self) -> bool {
        match self {
            Self::OtherClient | Self::Method => true,
            Self::Missing | Self::Malformed | Self::Forged | Self::Expired => false,
        }
    }
}

/// Keeps of each key the newest value, and the last [`PRESENTED`] keys.
#[derive(Debug)]
struct Latest<T> {
    entries: VecDeque<(u64, T)>,
}

impl<T> Latest<T> {
    fn get(&self, key: u64) -> Option<&T> {
        let mut entries = self.entries.iter().rev();
        entries.find(|(of, _)| *of == key).map(|(_, value)| value)
    }

    fn put(&mut self, key: u64, value: T) {
        self.entries.retain(|(of, _)| *of != key);
        if self.entries.len() >= PRESENTED {
            self.entries.pop_front();
        }
        self.entries.push_back((key, value));
    }
}

/// Tokens that the peer of a connection has presented.
#[derive(Debug)]
pub(crate) struct Grants(Latest<Result<Claims, Denial>>);

impl Grants {
    pub(crate) fn new() -> Self {
        Self(Latest {
            entries: VecDeque::new(),
        })
    }

    /// Takes a token of a service, or the reason why it is none.
    pub(crate) fn put(&mut self, service: u64, token: Result<Claims, Denial>) {
        self.0.put(service, token);
    }

    /// Whether the peer may call this method of a service that requires tokens, or, without a method, send it messages. `now` is in seconds since 1970-01-01 UTC.
    pub(crate) fn permit(&self, service: u64, method: Option<u32>, now: u64) -> Result<(), Denial> {
        let token = self.0.get(service).ok_or(Denial::Missing)?;
        let claims = token.as_ref().map_err(|denial| *denial)?;
        if claims.end != 0 && now >= claims.end {
            return Err(Denial::Expired);
        }
        let all = claims.methods.is_empty();
        if all || method.is_some_and(|method| claims.methods.contains(&method)) {
            Ok(())
        } else {
            Err(Denial::Method)
        }
    }
}

/// Tokens that this end has presented on a connection, each by the number of its making.
#[derive(Debug)]
pub(crate) struct Presented(Latest<u64>);

impl Presented {
    pub(crate) fn new() -> Self {
        Self(Latest {
            entries: VecDeque::new(),
        })
    }

    /// Whether this token of a service is to be presented now: the peer does not have it.
    pub(crate) fn present(&mut self, service: u64, token: u64) -> bool {
        if self.0.get(service) == Some(&token) {
            return false;
        }
        self.0.put(service, token);
        true
    }
}

/// Connections that are not confirmed, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    connections: VecDeque<(Duration, u64)>,
}

impl Unconfirmed {
    /// Adds a connection. Returns the oldest one where there are too many: it is to be ended.
    pub(crate) fn add(&mut self, connection: u64, now: Duration) -> Option<u64> {
        let is_full = self.connections.len() >= UNCONFIRMED;
        let oldest = is_full.then(|| self.connections.pop_front()).flatten();
        self.connections.push_back((now, connection));
        oldest.map(|(_, oldest)| oldest)
    }

    /// Forgets a connection that is confirmed or over.
    pub(crate) fn remove(&mut self, connection: u64) {
        self.connections.retain(|(_, it)| *it != connection);
    }

    /// The next connection whose time is over; it is to be ended.
    pub(crate) fn expire(&mut self, now: Duration) -> Option<u64> {
        let (since, _) = self.connections.front()?;
        let is_over = now.saturating_sub(*since) >= CONFIRMATION;
        is_over
            .then(|| self.connections.pop_front())
            .flatten()
            .map(|(_, it)| it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(end: u64, methods: &[u32]) -> Claims {
        Claims {
            service: 1,
            end,
            client: None,
            methods: methods.to_vec(),
        }
    }

    #[test]
    fn a_token_is_for_its_service_its_methods_and_its_time() {
        let mut grants = Grants::new();
        assert_eq!(grants.permit(1, Some(7), 0), Err(Denial::Missing));
        grants.put(1, Ok(claims(100, &[7, 8])));
        assert_eq!(grants.permit(1, Some(7), 99), Ok(()));
        assert_eq!(grants.permit(1, Some(8), 99), Ok(()));
        assert_eq!(grants.permit(1, Some(9), 99), Err(Denial::Method));
        assert_eq!(grants.permit(1, None, 99), Err(Denial::Method));
        assert_eq!(grants.permit(1, Some(7), 100), Err(Denial::Expired));
        assert_eq!(grants.permit(2, Some(7), 99), Err(Denial::Missing));
        // The newer one counts, also where it is none.
        grants.put(1, Ok(claims(0, &[])));
        assert_eq!(grants.permit(1, Some(9), u64::MAX), Ok(()));
        assert_eq!(grants.permit(1, None, u64::MAX), Ok(()));
        grants.put(1, Err(Denial::Forged));
        assert_eq!(grants.permit(1, Some(7), 0), Err(Denial::Forged));
    }

    #[test]
    fn both_ends_forget_the_same_services() {
        let (mut grants, mut presented) = (Grants::new(), Presented::new());
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let service = (seed >> 33) % 80;
            if presented.present(service, (seed >> 50) % 2) {
                grants.put(service, Ok(claims(0, &[])));
            }
            assert_eq!(grants.permit(service, None, 0), Ok(()));
            assert!(grants.0.entries.len() <= PRESENTED);
            assert!(presented.0.entries.len() <= PRESENTED);
        }
        assert!(!presented.present(5, 9) || !presented.present(5, 9));
        assert!(presented.present(5, 10), "a new token is presented");
    }

    #[test]
    fn connections_that_are_not_confirmed_are_few_and_short() {
        let mut unconfirmed = Unconfirmed::default();
        let second = Duration::from_secs;
        for connection in 0..UNCONFIRMED as u64 {
            assert_eq!(unconfirmed.add(connection, second(1)), None);
        }
        assert_eq!(unconfirmed.add(1000, second(2)), Some(0));
        unconfirmed.remove(1);
        assert_eq!(unconfirmed.add(1001, second(2)), None);
        assert_eq!(unconfirmed.expire(second(4)), None);
        let mut ended = 0;
        while unconfirmed.expire(second(1) + CONFIRMATION).is_some() {
            ended += 1;
        }
        assert_eq!(ended, UNCONFIRMED - 2);
        assert_eq!(unconfirmed.expire(second(2) + CONFIRMATION), Some(1000));
        assert_eq!(unconfirmed.expire(second(2) + CONFIRMATION), Some(1001));
        assert_eq!(unconfirmed.expire(Duration::MAX), None);
    }
}
