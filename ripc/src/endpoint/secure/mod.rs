//! Handshakes of connections, and tokens of services.

pub(crate) mod rights;
pub(crate) mod sealed;

use std::time::Duration;

use self::sealed::Secure;
use super::peer::Phase;
use super::state::State;
use crate::engine::admission::Denial;
use crate::names::{MethodId, ServiceId};
use crate::status::{Code, Status};
use crate::system::unix_seconds;

fn status_of(denial: Denial) -> Status {
    let code = if denial.is_permission() {
        Code::PermissionDenied
    } else {
        Code::Unauthenticated
    };
    Status::new(code, format!("{denial}: the call was not executed"))
}

impl State {
    /// Takes the keys of a Request that was accepted.
    pub(crate) fn await_confirmation(&mut self, key: u64, secure: Option<Secure>, now: Duration) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        peer.secure = secure;
        if peer.secure.is_some()
            && let Some(oldest) = self.rights.unconfirmed.add(key, now)
        {
            self.give_up(oldest, "another connection took its place", now);
        }
    }

    /// Ends connections that were not confirmed in time.
    pub(crate) fn expire_unconfirmed(&mut self, now: Duration) {
        while let Some(key) = self.rights.unconfirmed.expire(now) {
            self.give_up(key, "it was not confirmed in time", now);
        }
    }

    fn give_up(&mut self, key: u64, reason: &str, now: Duration) {
        if let Some(peer) = self.peers.get(&key) {
            self.rights.note(peer.address, &reason);
        }
        self.close(key, false, reason, now);
    }

    /// The Initiator has its keys.
    pub(crate) fn confirmed(&mut self, key: u64) {
        self.rights.unconfirmed.remove(key);
        if let Some(peer) = self.peers.get_mut(&key)
            && peer.phase == Phase::Unconfirmed
        {
            peer.phase = Phase::Up;
        }
    }

    /// Takes a token that a peer presents.
    pub(crate) fn take_token(&mut self, key: u64, octets: &[u8]) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let service = octets.get(4..12).and_then(|it| it.first_chunk());
        let Some(service) = service.map(|it| u64::from_be_bytes(*it)) else {
            return;
        };
        if let Some(secret) = self.rights.secret_of(ServiceId::of_wire(service)) {
            let client = peer.secure.as_ref().map(Secure::peer);
            peer.grants
                .put(service, secret.check(octets, client.as_ref()));
        }
    }

    /// Whether a peer may call this method of a service, or, without a method, send it messages.
    pub(crate) fn permit(
        &self,
        key: u64,
        service: ServiceId,
        method: Option<MethodId>,
    ) -> Result<(), Status> {
        if self.rights.secret_of(service).is_none() {
            return Ok(());
        }
        let Some(peer) = self.peers.get(&key) else {
            return Ok(());
        };
        let method = method.map(MethodId::number);
        let permitted = peer.grants.permit(service.number(), method, unix_seconds());
        permitted.map_err(status_of)
    }
}
