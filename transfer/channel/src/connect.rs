//! Channels come up: rings are announced in the private data of the MPA Request and of the Reply.

use std::net::SocketAddr;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Cq, MpaConfig, Mr, Pd, QpAttr, RcListener, RcQp, RcQpAttr, RcRequest, RecvWr,
    Rnic,
};

use crate::channel::{Channel, Memory};
use crate::config::{Config, MOST_SLOTS};
use crate::error::Error;
use crate::wire::{Announce, NOTICE_LEN};

/// Work requests of one end's sends at most.
pub(crate) const SENDS: usize = 4096;
/// Receives of one end at most: a notice for each slot of its ring, and a release of each of the peer's, and the first and the last notice.
const RECEIVES: usize = 2 * MOST_SLOTS as usize + 2;

/// A port at which channels are accepted.
#[derive(Debug)]
pub struct Listener {
    rnic: Rnic,
    listener: RcListener,
    config: Config,
}

impl Listener {
    /// Listens on an address and TCP port, port 0 for one of the system's choice.
    ///
    /// # Errors
    /// [`Error::Device`] where the port is taken, [`Error::Config`].
    pub fn bind(address: SocketAddr, config: Config) -> Result<Self, Error> {
        check(&config)?;
        Ok(Self {
            rnic: Rnic::open(config.device.clone())?,
            listener: RcListener::bind(address, MpaConfig::default())?,
            config,
        })
    }

    /// The address and port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// The next channel. One that fails to come up is an error; the listener goes on.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Connect`], [`Error::Violation`], [`Error::LargeRing`] and [`Error::Memory`] about one peer.
    pub fn accept(&self, timeout: Duration) -> Result<Channel, Error> {
        let request = self.listener.accept(timeout)?.ok_or(Error::TimedOut)?;
        let answered = self.answer(&request);
        match answered {
            Ok((end, peer)) => {
                let ours = end.announce(&self.config);
                let depths = request.request().matching_depths();
                request.accept(&end.qp, depths, &ours.to_bytes())?;
                end.into_channel(&self.config, peer)
            }
            Err(error) => {
                // The peer learns that it is not wanted, and need not wait.
                let _ = request.reject(b"");
                Err(error)
            }
        }
    }

    fn answer(&self, request: &RcRequest) -> Result<(End, Announce), Error> {
        let peer = Announce::parse(&request.request().private_data)?;
        let mut end = End::new(&self.rnic, &self.config)?;
        end.prepare(&self.config, &peer)?;
        Ok((end, peer))
    }
}

impl Channel {
    /// Connects to a [`Listener`].
    ///
    /// # Errors
    /// [`Error::Connect`] where there is none or it rejects, [`Error::Violation`] where another service answers, [`Error::LargeRing`], [`Error::Memory`],
    /// [`Error::Config`].
    pub fn connect(to: SocketAddr, config: Config) -> Result<Self, Error> {
        check(&config)?;
        let rnic = Rnic::open(config.device.clone())?;
        let mut end = End::new(&rnic, &config)?;
        let ours = end.announce(&config);
        let established = end
            .qp
            .connect(to, &MpaConfig::default(), &ours.to_bytes())?;
        let peer = Announce::parse(&established.private_data)?;
        end.prepare(&config, &peer)?;
        let channel = end.into_channel(&config, peer)?;
        // The Responder may send once the Initiator has (RFC 5044 §7.1).
        channel.greet()?;
        Ok(channel)
    }

    /// Connects to the first of the addresses of a host at which a connection comes up, in their order.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), for the last address that was tried; [`Error::Config`] without addresses. Errors other than [`Error::Connect`] end the search.
    pub fn connect_to_first(
        addresses: impl IntoIterator<Item = SocketAddr>,
        config: &Config,
    ) -> Result<Self, Error> {
        let mut last = Error::Config("the number of addresses");
        for address in addresses {
            match Self::connect(address, config.clone()) {
                Err(error @ Error::Connect(_)) => last = error,
                ended => return ended,
            }
        }
        Err(last)
    }
}

fn check(config: &Config) -> Result<(), Error> {
    if !(1..=MOST_SLOTS).contains(&config.slots) {
        return Err(Error::Config("the number of slots"));
    }
    if config.slot_size == 0 {
        return Err(Error::Config("the size of slots"));
    }
    Ok(())
}

/// A queue pair with its ring.
struct End {
    pd: Pd,
    cq: Cq,
    qp: RcQp,
    ring: (Buffer, Mr),
    /// The copy of the peer's ring, and the memory of notices, once the peer's ring is known.
    others: Option<[(Buffer, Mr); 2]>,
}

fn memory(pd: &Pd, octets: u64, access: Access) -> Result<(Buffer, Mr), Error> {
    let buffer = usize::try_from(octets)
        .map_err(std::io::Error::other)
        .and_then(Buffer::zeroed)
        .map_err(|source| Error::Memory { octets, source })?;
    let mr = pd.register(buffer.region(), access)?;
    Ok((buffer, mr))
}

impl End {
    fn new(rnic: &Rnic, config: &Config) -> Result<Self, Error> {
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(SENDS + RECEIVES)?;
        let qp = QpAttr {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_sge: 1,
            ..QpAttr::new(&cq, &cq)
        };
        let qp = pd.create_rc_qp(&RcQpAttr::from(qp))?;
        let octets = u64::from(config.slots) * u64::from(config.slot_size);
        let ring = memory(&pd, octets, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Self {
            pd,
            cq,
            qp,
            ring,
            others: None,
        })
    }

    fn announce(&self, config: &Config) -> Announce {
        Announce {
            slots: config.slots,
            slot_size: config.slot_size,
            stag: self.ring.1.rkey(),
            offset: self.ring.1.addr(),
        }
    }

    /// Makes what the peer's ring asks for, and posts receives for all notices that there may be.
    fn prepare(&mut self, config: &Config, peer: &Announce) -> Result<(), Error> {
        if peer.slots > MOST_SLOTS {
            return Err(Error::Violation("a ring of too many slots"));
        }
        if peer.octets() > config.largest_ring {
            return Err(Error::LargeRing {
                octets: peer.octets(),
                most: config.largest_ring,
            });
        }
        let copies = memory(&self.pd, peer.octets(), Access::empty())?;
        let receives = usize::from(config.slots) + usize::from(peer.slots) + 2;
        let octets = (receives * NOTICE_LEN) as u64;
        let notices = memory(&self.pd, octets, Access::LOCAL_WRITE)?;
        for place in 0..receives {
            let at = place * NOTICE_LEN;
            let sges = [notices.1.sge(at..at + NOTICE_LEN)];
            self.qp.post_recv(&[RecvWr {
                wr_id: place as u64,
                sges: &sges,
            }])?;
        }
        self.others = Some([copies, notices]);
        Ok(())
    }

    fn into_channel(self, config: &Config, peer: Announce) -> Result<Channel, Error> {
        let [copies, notices] = self.others.ok_or(Error::Violation("no ring"))?;
        let memory = Memory {
            ring: self.ring,
            copies,
            notices,
        };
        Ok(Channel::new(self.qp, self.cq, memory, config, peer))
    }
}
