//! Connections that do nothing, and what they cost.

use std::fmt::Debug;
use std::net::IpAddr;

use crate::error::{PerfError, Result};
use crate::machine::footprint::Footprint;
use crate::machine::host::Side;
use crate::measure::{Arrival, Flow, Geometry, PingPong, Want, Watch};
use crate::session::control::{EndpointSpec, Offer};

/// Connections at a time, at most: the descriptors of a process are limited.
pub(crate) const MAX_CONNECTIONS: u64 = 4096;

/// One side of many connections.
pub(crate) trait Connections: Debug + Sized {
    /// Makes this side's ends of so many connections on `local`. The server's half also offers its port.
    fn open(count: usize, local: IpAddr, side: Side) -> Result<(Self, Offer)>;

    /// The client begins to connect.
    fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()>;

    /// Waits until all are connected; the server first, which accepts.
    fn complete(&mut self) -> Result<()>;
}

/// One side, and what was used before it.
#[derive(Debug)]
pub(crate) struct Idle<C> {
    connections: C,
    before: Footprint,
    count: u64,
    local: IpAddr,
    /// Ends of each connection on this host.
    ends: u64,
}

impl<C: Connections> Idle<C> {
    /// Opens this side; the size of the specification is the number of connections.
    pub(crate) fn open(spec: &EndpointSpec, local: IpAddr, side: Side) -> Result<(Self, Offer)> {
        if spec.size > MAX_CONNECTIONS {
            return Err(PerfError::Usage(format!(
                "at most {MAX_CONNECTIONS} connections are measured at a time"
            )));
        }
        let before = Footprint::now();
        let count = usize::try_from(spec.size).unwrap_or(0);
        let (connections, offer) = C::open(count, local, side)?;
        let idle = Self {
            connections,
            before,
            count: spec.size,
            local,
            ends: 1,
        };
        Ok((idle, offer))
    }

    /// The client begins to connect.
    pub(crate) fn connect(&mut self, peer: IpAddr, offer: &Offer) -> Result<()> {
        self.ends = if peer == self.local { 2 } else { 1 };
        self.connections.connect(peer, offer)
    }

    /// Nothing is sent: the sizes are formal.
    pub(crate) fn geometry(&self) -> Geometry {
        Geometry::connected(self.count, self.count, None)
    }

    /// Waits until all are connected.
    pub(crate) fn configure(&mut self, _geometry: &Geometry) -> Result<()> {
        self.connections.complete()
    }
}

impl<C: Connections> Flow for Idle<C> {
    const LOSES: bool = false;

    fn start_round(&mut self, _round: u16) -> Result<()> {
        Ok(())
    }

    fn transmit(&mut self, _position: u64, _length: u64) -> Result<u64> {
        Err(nothing_flows())
    }

    fn poll(&mut self, _want: Want, _may_wait: bool) -> Result<Arrival> {
        Err(nothing_flows())
    }

    fn credit(&mut self, _position: u64) -> Result<()> {
        Err(nothing_flows())
    }

    /// Of one end of one connection.
    fn footprint(&self) -> Footprint {
        let grown = Footprint::now().since(self.before);
        Footprint {
            user: grown.user / self.count,
            kernel: grown.kernel / self.count / self.ends,
        }
    }
}

impl<C: Connections> PingPong for Idle<C> {
    const LOSES: bool = false;

    fn send(&mut self, _sequence: u64, _watch: &mut Watch<'_>) -> Result<()> {
        Err(nothing_flows())
    }

    fn try_receive(&mut self) -> Result<Option<u64>> {
        Err(nothing_flows())
    }
}

fn nothing_flows() -> PerfError {
    PerfError::Protocol("nothing is sent over idle connections".to_owned())
}
