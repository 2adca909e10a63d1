//! State of the library in a process: one endpoint, its services, and addresses of others.

use std::collections::HashMap;
use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::Duration;

use dgiwarp_ripc::{
    Block, Code, Config, Destination, Endpoint, Group, Incoming, Item, Payload, PrivateKey,
    PublicKey, Security, ServiceId, StaticFile,
};
use parking_lot::Mutex;

use crate::memory::Memory;

/// Octets of a short message, with those of each item.
const SHORT: usize = 8000;
const ITEM: usize = 24;
/// Time in which the group has to answer.
const RESOLVE: Duration = Duration::from_secs(2);
/// First number of those that are taken at random.
const RANDOM: u16 = 1024;

/// The library in this process.
#[derive(Debug)]
pub(crate) struct Library {
    endpoint: Endpoint,
    pub(crate) memory: Memory,
    file: StaticFile,
    addresses: Mutex<HashMap<ServiceId, SocketAddr>>,
}

/// Whether items are those of a short message.
pub(crate) fn is_short(items: &[Item]) -> bool {
    items.iter().map(|item| item.len() + ITEM).sum::<usize>() <= SHORT
}

fn warn(problem: &dyn std::fmt::Display) {
    eprintln!("libripc: {problem}");
}

/// Keys of the environment: `RIPC_KEY`, `RIPC_PEER_KEY` and `RIPC_KNOWN_CLIENTS`.
fn security() -> Result<Option<Security>, Box<dyn std::error::Error>> {
    let peer = env::var("RIPC_PEER_KEY").ok().map(|text| text.parse());
    let peer: Option<PublicKey> = peer.transpose()?;
    let known = env::var_os("RIPC_KNOWN_CLIENTS");
    let mut security = match env::var_os("RIPC_KEY") {
        Some(path) => Security::new(PrivateKey::read(Path::new(&path))?),
        None if peer.is_none() && known.is_none() => return Ok(None),
        None => return Err("RIPC_PEER_KEY and RIPC_KNOWN_CLIENTS need RIPC_KEY".into()),
    };
    if let Some(peer) = peer {
        security = security.with_peer(peer);
    }
    if let Some(path) = known {
        security = security.with_known_clients(PublicKey::read_list(Path::new(&path))?);
    }
    Ok(Some(security))
}

impl Library {
    /// The library, opened at the first call; `None` where that failed.
    pub(crate) fn get() -> Option<&'static Self> {
        static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| match Self::open() {
            Ok(library) => Some(library),
            Err(error) => {
                warn(&error);
                None
            }
        });
        library.as_ref()
    }

    fn open() -> Result<Self, Box<dyn std::error::Error>> {
        let (device, warnings) = dgiwarp::Config::from_environment(env::vars(), &[]);
        for warning in warnings {
            warn(&warning);
        }
        let mut config = Config::default();
        config.device = device;
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let listen = env::var("RIPC_LISTEN").ok().map(|text| text.parse());
        config.listen = Some(listen.transpose()?.unwrap_or(any));
        let mut group = Group::default();
        let interface = env::var("RIPC_INTERFACE").ok().map(|text| text.parse());
        group.interface = interface.transpose()?;
        config.group = Some(group);
        config.security = security()?;
        let file = match env::var_os("RIPC_SERVICES") {
            Some(path) => StaticFile::read(Path::new(&path))?,
            None => StaticFile::default(),
        };
        Ok(Self {
            endpoint: Endpoint::open(config)?,
            memory: Memory::default(),
            file,
            addresses: Mutex::default(),
        })
    }

    /// Takes a number for a service of this process.
    pub(crate) fn register(&self, number: u16) -> bool {
        self.endpoint.open_inbox(&number.to_string()).is_ok()
    }

    /// Takes a number that neither this process nor anybody in the group has.
    pub(crate) fn register_random(&self) -> u16 {
        let used: Vec<_> = self
            .endpoint
            .list(Duration::from_millis(100))
            .unwrap_or_default()
            .into_iter()
            .flat_map(|found| found.services)
            .map(|service| service.id.number())
            .collect();
        // The instance is random.
        let start = self.endpoint.instance();
        let numbers = (0..u64::from(u16::MAX - RANDOM)).map(|step| {
            let offset = start.wrapping_add(step) % u64::from(u16::MAX - RANDOM);
            RANDOM + u16::try_from(offset).unwrap_or(0)
        });
        let mut free = numbers.filter(|number| !used.contains(&u64::from(*number)));
        free.find(|number| self.register(*number)).unwrap_or(0)
    }

    /// Zeroed memory; returns its address.
    pub(crate) fn alloc(&self, size: usize) -> Option<usize> {
        if size == 0 {
            return None;
        }
        let block = self.endpoint.block(size).ok()?;
        let zeroes = vec![0; size.min(1 << 16)];
        for at in (0..size).step_by(zeroes.len()) {
            let _ = block.write(at, &zeroes[..zeroes.len().min(size - at)]);
        }
        Some(self.memory.keep(block))
    }

    /// Memory for a return buffer of the library's own, kept for the program that receives into it.
    pub(crate) fn window(&self, length: usize) -> Option<Block> {
        let address = self.alloc(length)?;
        let block = self.memory.part(address, length);
        self.memory.free(address);
        block
    }

    /// Gives memory for the next long item.
    pub(crate) fn add_place(&self, block: Block) {
        self.endpoint.add_place(block);
    }

    /// A block of the octets: where they lie if the library has them, else a copy.
    ///
    /// # Safety
    /// There are so many octets.
    pub(crate) unsafe fn block_of(&self, start: NonNull<u8>, length: usize) -> Option<Block> {
        let known = self.memory.part(start.as_ptr().expose_provenance(), length);
        if known.is_some() {
            return known;
        }
        let block = self.endpoint.block(length).ok()?;
        // SAFETY: the caller's promise.
        let octets = unsafe { std::slice::from_raw_parts(start.as_ptr(), length) };
        block.write(0, octets).ok()?;
        Some(block)
    }

    /// Sends a message. Returns false where it was not sent.
    pub(crate) fn send(&self, from: u16, to: u16, items: Vec<Item>, windows: Vec<Block>) -> bool {
        let (Some(from), Some(to)) = (ServiceId::numbered(from), ServiceId::numbered(to)) else {
            return false;
        };
        let payload = Payload {
            items,
            ..Payload::default()
        };
        let send = |destination| {
            let (payload, windows) = (payload.clone(), windows.clone());
            self.endpoint.send(from, to, destination, payload, windows)
        };
        // A message of the destination has shown where it is.
        match send(Destination::Learned) {
            Err(status) if status.code == Code::NotFound => {}
            result => return report(result),
        }
        let Some(address) = self.address(to) else {
            return false;
        };
        report(send(Destination::Address(address)))
    }

    fn address(&self, service: ServiceId) -> Option<SocketAddr> {
        // One without a connection is resolved again: the service may have moved.
        let known = self.addresses.lock().get(&service).copied();
        if let Some(address) = known.filter(|it| self.endpoint.has_connection(*it)) {
            return Some(address);
        }
        let of_file = self.file.addresses(service).first().copied();
        let found = of_file.or_else(|| {
            let found = self.endpoint.resolve(&service.to_string(), RESOLVE);
            found.ok()??.addresses().first().copied()
        })?;
        self.addresses.lock().insert(service, found);
        Some(found)
    }

    /// Waits for a message; `None` where this process has no such service.
    pub(crate) fn receive(&self, service: u16) -> Option<Incoming> {
        let service = ServiceId::numbered(service)?;
        if !self.endpoint.has_inbox(service) {
            return None;
        }
        self.endpoint.receive(service, None)
    }
}

fn report(result: Result<(), dgiwarp_ripc::Status>) -> bool {
    match result {
        Ok(()) => true,
        Err(status) => {
            warn(&status);
            false
        }
    }
}
