//! The device.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

use crate::api::device::events::Events;
use crate::api::device::statistics::Statistics;
use crate::driver::cm::oob_connect::OobConnections;
use crate::driver::cm::port_queries::DevicePorts;
use crate::driver::cq::completion_queue::CompletionQueue;
use crate::driver::device::clock;
use crate::driver::device::network::NetworkChanges;
use crate::driver::device::thread::Background;
use crate::{AsyncEvents, Config, Error, QpCounters};
use dgiwarp_engine::mr::MrTable;

/// A handle of an [`Rnic`] that does not keep it open.
#[derive(Debug, Clone)]
pub struct WeakRnic(Weak<RnicShared>);

impl WeakRnic {
    /// The device, if it is still open.
    #[must_use]
    pub fn upgrade(&self) -> Option<Rnic> {
        let shared = self.0.upgrade()?;
        Some(Rnic { shared })
    }
}

/// A software RNIC. Cloning shares it; it lives until the last object made from it is gone.
#[derive(Debug, Clone)]
pub struct Rnic {
    pub(crate) shared: Arc<RnicShared>,
}

#[derive(Debug)]
pub(crate) struct RnicShared {
    pub(crate) config: Config,
    pub(crate) mrs: Arc<MrTable>,
    pub(crate) background: Arc<Background>,
    /// QPs that are connected by exchanged numbers, once there are some.
    oob_connections: Mutex<Option<Arc<OobConnections>>>,
    events: Arc<Events>,
    pub(crate) statistics: Statistics,
    /// Octets of receive buffer that the kernel grants each socket; set at the first use.
    pub(crate) receive_buffer: OnceLock<usize>,
    random: Mutex<ChaCha20Rng>,
    pub(crate) next_pd: AtomicU32,
    /// Datagram QPs made so far.
    datagram_qps: AtomicU64,
    /// Completion queues whose poll sets have the targets of XRC domains.
    xrcds: Mutex<Vec<Weak<CompletionQueue>>>,
    /// Listeners that have moved away from their ports, and the services that answer for them.
    pub(crate) ports: Arc<Mutex<DevicePorts>>,
}

impl RnicShared {
    /// Random words.
    pub(crate) fn draw<const N: usize>(&self) -> [u32; N] {
        let mut random = self.random.lock();
        std::array::from_fn(|_| random.next_u32())
    }

    /// Epoch and key of a reliable datagram QP's life.
    pub(crate) fn draw_identity(&self) -> (u32, [u64; 2]) {
        let [epoch, a, b, c, d] = self.draw();
        let key = [(a, b), (c, d)].map(|(high, low)| u64::from(high) << 32 | u64::from(low));
        (epoch, key)
    }

    /// Takes the place of a datagram QP in the order of their making.
    pub(crate) fn next_datagram_qp(&self) -> u64 {
        self.datagram_qps.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds the completion queue of an XRC domain.
    pub(crate) fn add_xrcd(&self, cq: &Arc<CompletionQueue>) {
        let mut xrcds = self.xrcds.lock();
        xrcds.retain(|cq| cq.strong_count() > 0);
        xrcds.push(Arc::downgrade(cq));
    }

    /// Links the completion queue of an XRC initiator with the domains: a program that waits for this queue alone so receives for their targets, and
    /// has them send acknowledgements.
    pub(crate) fn link_xrcds(&self, cq: &CompletionQueue) -> Result<(), Error> {
        let xrcds: Vec<_> = self.xrcds.lock().iter().filter_map(Weak::upgrade).collect();
        xrcds.iter().try_for_each(|xrcd| cq.link(xrcd))
    }

    /// Out-of-band connections of the device, made at the first use.
    pub(crate) fn oob_connections(&self) -> Result<Arc<OobConnections>, Error> {
        let mut oob_connections = self.oob_connections.lock();
        if let Some(oob_connections) = &*oob_connections {
            return Ok(Arc::clone(oob_connections));
        }
        let new = OobConnections::new(self.config.ports.clone(), self.config.mpa.crc)?;
        self.background.serve_task(&new)?;
        *oob_connections = Some(Arc::clone(&new));
        Ok(new)
    }
}

impl Drop for RnicShared {
    fn drop(&mut self) {
        self.background.stop();
        self.statistics.write_all();
    }
}

impl Rnic {
    /// Opens a device.
    ///
    /// # Errors
    /// [`Error::System`] where the system gives no randomness or descriptors.
    pub fn open(config: Config) -> Result<Self, Error> {
        clock::start();
        let mut random = match config.seed {
            Some(seed) => ChaCha20Rng::seed_from_u64(seed),
            None => ChaCha20Rng::from_seed(system_seed()?),
        };
        let keys = ChaCha20Rng::from_rng(&mut random);
        let events = Events::new()?;
        let shared = RnicShared {
            mrs: Arc::new(MrTable::new(keys).reporting(warn_of_private_region)),
            background: Background::new(&config, Arc::clone(&events))?,
            oob_connections: Mutex::new(None),
            events,
            statistics: Statistics::new(config.stats.clone()),
            receive_buffer: OnceLock::new(),
            random: Mutex::new(random),
            xrcds: Mutex::default(),
            next_pd: AtomicU32::new(1),
            datagram_qps: AtomicU64::new(0),
            ports: Arc::default(),
            config,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// The settings it was opened with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The device's clock: it counts from some moment of this process, and is not set.
    #[must_use]
    pub fn time(&self) -> Duration {
        Duration::from_nanos(clock::to_nanos(Some(clock::now())))
    }

    /// Sums of the counters of all queue pairs of the device, destroyed ones included.
    #[must_use]
    pub fn counters(&self) -> QpCounters {
        self.shared.statistics.sum().1
    }

    /// Writes the counters as [`Config::stats`] has it, now: for programs that end without closing the device.
    pub fn write_statistics(&self) {
        self.shared.statistics.write_all();
    }

    /// For programs that end without closing the device: lets octets that connected queue pairs accepted leave, for at most 200 ms (three seconds on reliable datagrams), or half a second from
    /// [`RcQp::start`](crate::RcQp::start) where a connection is coming up. They can be used no more.
    pub fn leave_process(&self) {
        // Locked for the time in which the first paired queue pair is made, at most.
        let oob_connections = self.shared.oob_connections.try_lock();
        let oob_connections = oob_connections.and_then(|it| it.clone());
        if let Some(oob_connections) = oob_connections {
            oob_connections.let_all_leave();
        }
        self.shared.background.leave_process();
    }

    /// A handle that does not keep the device open.
    #[must_use]
    pub fn downgrade(&self) -> WeakRnic {
        WeakRnic(Arc::downgrade(&self.shared))
    }

    /// Calls `changed` after the host's links or addresses have changed, from the background thread, which this starts. Several changes may make one call, and
    /// a change of another kind may make one too.
    ///
    /// # Errors
    /// [`Error::System`] where the system gives no netlink socket or no thread.
    pub fn watch_network(
        &self,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> Result<NetworkWatch, Error> {
        let changes = NetworkChanges::new(Box::new(changed))
            .map_err(|errno| Error::system("cannot watch the network")(errno.into()))?;
        self.shared.background.serve_task(&changes)?;
        Ok(NetworkWatch { _changes: changes })
    }

    /// The device's asynchronous events (`ibv_get_async_event(3)`).
    #[must_use]
    pub fn async_events(&self) -> AsyncEvents {
        AsyncEvents::new(Arc::clone(&self.shared.events))
    }
}

/// Calls a function when the host's network changes ([`Rnic::watch_network`]). Dropping it ends that; a call may be under way.
#[derive(Debug)]
pub struct NetworkWatch {
    _changes: Arc<NetworkChanges>,
}

/// Warns once, as a peer may repeat it.
fn warn_of_private_region(key: u32) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            key = %format_args!("{key:#010x}"),
            "a peer named the key of a region without rights for peers: register it with remote access"
        );
    }
}

fn system_seed() -> Result<[u8; 32], Error> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| {
        Error::system("the system gives no randomness")(std::io::Error::other(error))
    })?;
    Ok(seed)
}
