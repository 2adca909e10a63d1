//! Proving to a peer that this queue pair receives at the address that it sends from.

use std::time::Duration;

use crate::driver::device::clock;
use crate::{Destination, Error, UdQp};

impl UdQp {
    /// Gets the peer's cookie, in one round trip, and returns the destination with which Write-Records carry it: memory that was registered
    /// with [`MrOptions::cookie`](crate::MrOptions::cookie) takes no others. The peer answers without its program. Waits at most
    /// for `timeout`, repeating the request.
    ///
    /// The cookie belongs to this queue pair and that peer. It holds until the peer's queue pair is made anew; then messages that carry the old one
    /// is dropped there (`bad-cookie`), and this call gets the new one.
    ///
    /// # Errors
    /// [`Error::NoCookie`] where no answer came in time, and for a group, which has none.
    pub fn prove_address(
        &self,
        destination: &Destination,
        timeout: Duration,
    ) -> Result<Destination, Error> {
        let ah = &destination.ah;
        let asked = self.peer(ah, destination.qpn).ok();
        let host = asked.filter(|_| !ah.is_group());
        let deadline = clock::now() + timeout;
        let cookie = host.and_then(|peer| self.shared.fetch_cookie(peer, ah.source(), deadline));
        let no_cookie = || Error::NoCookie {
            peer: (ah.destination(), destination.qpn).into(),
        };
        Ok(Destination {
            ah: ah.with_cookie(cookie.ok_or_else(no_cookie)?),
            ..destination.clone()
        })
    }
}
