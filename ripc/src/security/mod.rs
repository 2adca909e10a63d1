//! Keys, the handshake of connections, and tokens of services.

pub(crate) mod handshake;
pub(crate) mod keys;
pub(crate) mod token;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use keys::{PrivateKey, PublicKey};

use crate::error::Error;

/// Key of an endpoint, and keys of its peers. Such an endpoint makes and takes no connection without a handshake.
///
/// ```
/// use dgiwarp_ripc::{CallOptions, Config, Endpoint, MethodId, Payload, PrivateKey, Security};
///
/// let key = PrivateKey::generate()?;
/// let public = key.public();
/// let client_key = PrivateKey::generate()?;
/// let security = Security::new(key).with_known_clients([client_key.public()]);
/// let config = Config::listening("127.0.0.1:0".parse()?).without_group();
/// let server = Endpoint::open(config.secured(security))?;
/// server.serve("whoami", |request| {
///     let client = request.client.expect("all clients have keys here");
///     Ok(Payload::short(client.to_string()))
/// })?;
///
/// let name = client_key.public().to_string();
/// let security = Security::new(client_key).with_peer(public).sealed();
/// let endpoint = Endpoint::open(Config::default().without_group().secured(security))?;
/// let client = endpoint.client("whoami".parse()?, vec![server.local_addr().unwrap()]);
/// let reply = client.call(MethodId::named("ask"), Payload::new(), &CallOptions::default())?;
/// assert_eq!(reply.bytes(0), name.as_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Security {
    key: PrivateKey,
    known: Option<BTreeSet<PublicKey>>,
    peer: Option<PublicKey>,
    peers: BTreeMap<SocketAddr, PublicKey>,
    sealed: bool,
}

impl Security {
    /// With this key. Any clients are taken, and no peer is called until its key is known.
    #[must_use]
    pub const fn new(key: PrivateKey) -> Self {
        Self {
            key,
            known: None,
            peer: None,
            peers: BTreeMap::new(),
            sealed: false,
        }
    }

    /// With a new key, which no peer knows: for clients of servers that take any.
    ///
    /// # Errors
    /// [`Error::System`] without randomness.
    pub fn anonymous() -> Result<Self, Error> {
        PrivateKey::generate().map(Self::new)
    }

    /// Connections that this endpoint makes are to the holder of this key, unless one is known for the address.
    #[must_use]
    pub const fn with_peer(mut self, key: PublicKey) -> Self {
        self.peer = Some(key);
        self
    }

    /// Connections to this address are to the holder of this key.
    #[must_use]
    pub fn with_peer_at(mut self, address: SocketAddr, key: PublicKey) -> Self {
        self.peers.insert(address, key);
        self
    }

    /// Connections are taken from holders of these keys alone.
    #[must_use]
    pub fn with_known_clients(mut self, keys: impl IntoIterator<Item = PublicKey>) -> Self {
        self.known = Some(keys.into_iter().collect());
        self
    }

    /// All messages of all connections are sealed: encrypted and authenticated. Items have to fit a message ([`Limits::longest`](crate::Limits::longest) of the
    /// receiver); longer ones fail with `FAILED_PRECONDITION`. One of the two ends suffices.
    #[must_use]
    pub const fn sealed(mut self) -> Self {
        self.sealed = true;
        self
    }

    pub(crate) const fn key(&self) -> &PrivateKey {
        &self.key
    }

    pub(crate) const fn seals(&self) -> bool {
        self.sealed
    }

    pub(crate) fn knows(&self, client: &PublicKey) -> bool {
        let known = self.known.as_ref();
        known.is_none_or(|known| known.contains(client))
    }

    pub(crate) fn peer_at(&self, address: SocketAddr) -> Option<PublicKey> {
        self.peers.get(&address).copied().or(self.peer)
    }
}
