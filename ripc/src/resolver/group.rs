//! The group: queries by multicast, and the thread that answers them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::Error;
use crate::names::{ServiceId, ServiceName};
use crate::system::{after, now, random};
use crate::wire::resolve::{Answer, MAX_ANSWER, MAX_KNOWN, Query};

/// Answers that a query takes at most.
const ANSWERS: usize = 256;
/// Services of an endpoint that a querier takes; a part of an answer more, at most.
const SERVICES: usize = 16_384;
/// Time between the first two datagrams of a query; it doubles each time.
const AGAIN: Duration = Duration::from_millis(20);
/// Longest time between two of them.
const RARELY: Duration = Duration::from_secs(1);
/// Parts behind the first ones of answers in a second, at most: a query whose source is forged has few octets, and an answer may have many.
const LATER_PARTS: usize = 128;
/// Longest time in which the responder does not check whether it is to end.
const NAP: Duration = Duration::from_millis(250);

/// A multicast group in which services are announced and resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Group and UDP port, the same at all endpoints. Default 239.255.71.82:15510.
    pub address: SocketAddrV4,
    /// Address of the interface to use; `None`, the default, for all that are up.
    pub interface: Option<Ipv4Addr>,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            address: SocketAddrV4::new(Ipv4Addr::new(239, 255, 71, 82), 15_510),
            interface: None,
        }
    }
}

/// An endpoint that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its random number.
    pub instance: u64,
    /// Address and TCP port to call it at.
    pub address: SocketAddr,
    /// Services that it answered with: that which was asked for, or all.
    pub services: Vec<ServiceName>,
}

/// A service to be announced.
#[derive(Debug, Clone)]
pub(crate) struct Announced {
    pub(crate) id: ServiceId,
    pub(crate) name: String,
}

impl Group {
    /// Addresses of the interfaces to use.
    fn interfaces(&self) -> Vec<Ipv4Addr> {
        if let Some(interface) = self.interface {
            return vec![interface];
        }
        let all = getifaddrs().into_iter().flatten();
        let up = all.filter(|it| it.flags.contains(InterfaceFlags::IFF_UP));
        let addresses = up.filter_map(|it| Some(it.address?.as_sockaddr_in()?.ip()));
        let mut addresses: Vec<_> = addresses.collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Asks for the endpoints of a service, 0 for all of them. With `first` it ends once one has answered, else at the time limit.
    pub(crate) fn query(
        &self,
        service: u64,
        timeout: Duration,
        first: bool,
    ) -> Result<Vec<Found>, Error> {
        let error = "the group cannot be asked";
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(Error::system(error))?;
        let number = random()?;
        let interfaces = self.interfaces();
        let end = after(timeout);
        let left = || end.map_or(RARELY, |end| end.saturating_duration_since(now()));
        let mut found: Vec<Found> = Vec::new();
        let mut interval = AGAIN;
        while (found.is_empty() || !first) && found.len() < ANSWERS && !left().is_zero() {
            let known = known(&found);
            let query = Query {
                number,
                service,
                known,
            };
            let query = query.emit();
            for interface in &interfaces {
                let send = || {
                    socket2::SockRef::from(&socket).set_multicast_if_v4(interface)?;
                    socket.send_to(&query, self.address)
                };
                // An interface without a route to the group is not of it.
                if let Err(error) = send() {
                    tracing::debug!(%interface, %error, "the group is not reached");
                }
            }
            let again = after(interval.min(left()));
            interval = (interval * 2).min(RARELY);
            while let Some(again) = again {
                let wait = again.saturating_duration_since(now());
                if wait.is_zero() || found.len() >= ANSWERS || first && !found.is_empty() {
                    break;
                }
                socket
                    .set_read_timeout(Some(wait))
                    .map_err(Error::system(error))?;
                let mut bytes = [0; MAX_ANSWER + 1];
                // Errors are of the time limit, and of hosts that have no such port.
                let Ok((length, source)) = socket.recv_from(&mut bytes) else {
                    continue;
                };
                let answer = Answer::parse(&bytes[..length]);
                let Some(answer) = answer.ok().filter(|it| it.number == number) else {
                    continue;
                };
                add(&mut found, answer, source.ip());
            }
        }
        Ok(found)
    }
}

/// Instances that need not answer again unless they have more services: those with the most, as far as a query has room for them.
fn known(found: &[Found]) -> Vec<(u64, u16)> {
    let services = |it: &Found| u16::try_from(it.services.len()).unwrap_or(u16::MAX);
    let mut known: Vec<_> = found.iter().map(|it| (it.instance, services(it))).collect();
    known.sort_by_key(|(_, services)| std::cmp::Reverse(*services));
    known.truncate(MAX_KNOWN);
    known
}

fn add(found: &mut Vec<Found>, answer: Answer, ip: IpAddr) {
    if answer.port == 0 {
        return;
    }
    let services = answer.services.into_iter().map(|(id, name)| {
        let named = name.parse::<ServiceName>().ok();
        let id = ServiceId::of_wire(id);
        // A name that is not that of the number is not believed.
        let right = named.filter(|it| it.id == id);
        right.unwrap_or(ServiceName {
            id,
            name: String::new(),
        })
    });
    let address = SocketAddr::new(ip, answer.port);
    let Some(known) = found.iter_mut().find(|it| it.instance == answer.instance) else {
        found.push(Found {
            instance: answer.instance,
            address,
            services: services.collect(),
        });
        return;
    };
    // Of several addresses of an instance the first that answered is used.
    if known.address == address && known.services.len() < SERVICES {
        let have: FxHashSet<_> = known.services.iter().map(|it| it.id).collect();
        known
            .services
            .extend(services.filter(|it| !have.contains(&it.id)));
    }
}

/// Answers queries in the group until it is dropped.
#[derive(Debug)]
pub(crate) struct Responder {
    services: Arc<Mutex<Vec<Announced>>>,
    over: Arc<AtomicBool>,
}

impl Responder {
    /// Answers for an endpoint that listens at `listen`.
    pub(crate) fn start(group: &Group, instance: u64, listen: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from(group.address).into())?;
        let only = match listen.ip() {
            IpAddr::V4(ip) if !ip.is_unspecified() => Some(ip),
            IpAddr::V4(_) => None,
            IpAddr::V6(ip) if ip.is_unspecified() => None,
            IpAddr::V6(_) => return Err(io::Error::other("the group is of IPv4")),
        };
        let mut joined = 0;
        for interface in group.interfaces() {
            if only.is_none_or(|only| only == interface) {
                joined += usize::from(
                    socket
                        .join_multicast_v4(group.address.ip(), &interface)
                        .is_ok(),
                );
            }
        }
        if joined == 0 {
            return Err(io::Error::other("no interface is in the group"));
        }
        socket.set_read_timeout(Some(NAP))?;
        let from = UdpSocket::bind((only.unwrap_or(Ipv4Addr::UNSPECIFIED), 0))?;
        let socket = UdpSocket::from(socket);
        let services = Arc::new(Mutex::new(Vec::new()));
        let over = Arc::new(AtomicBool::new(false));
        let thread = Answering {
            services: Arc::clone(&services),
            over: Arc::clone(&over),
            instance,
            port: listen.port(),
        };
        thread::Builder::new()
            .name("ripc-group".to_owned())
            .spawn(move || thread.run(&socket, &from))?;
        Ok(Self { services, over })
    }

    pub(crate) fn add(&self, service: Announced) {
        self.services.lock().push(service);
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

struct Answering {
    services: Arc<Mutex<Vec<Announced>>>,
    over: Arc<AtomicBool>,
    instance: u64,
    port: u16,
}

impl Answering {
    fn run(&self, socket: &UdpSocket, from: &UdpSocket) {
        let mut second = now();
        let mut later_parts = 0;
        while !self.over.load(Ordering::Acquire) {
            let mut bytes = [0; MAX_ANSWER];
            let Ok((length, source)) = socket.recv_from(&mut bytes) else {
                continue;
            };
            let Ok(query) = Query::parse(&bytes[..length]) else {
                continue;
            };
            let parts = self.answer(&query).map(|it| it.emit()).unwrap_or_default();
            if now().saturating_duration_since(second) >= Duration::from_secs(1) {
                second = now();
                later_parts = 0;
            }
            let parts = parts.get(..1 + LATER_PARTS - later_parts).unwrap_or(&parts);
            later_parts += parts.len().saturating_sub(1);
            for part in parts {
                // A querier asks again.
                let _ = from.send_to(part, source);
            }
        }
    }

    fn answer(&self, query: &Query) -> Option<Answer> {
        let services = self.services.lock();
        let asked = services
            .iter()
            .filter(|it| query.service == 0 || it.id.number() == query.service);
        let asked: Vec<_> = asked.map(|it| (it.id.number(), it.name.clone())).collect();
        let mut known = query.known.iter();
        let is_known = known.any(|(instance, count)| {
            *instance == self.instance && usize::from(*count) >= asked.len()
        });
        (!asked.is_empty() && !is_known).then_some(Answer {
            number: query.number,
            instance: self.instance,
            port: self.port,
            services: asked,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answering(instance: u64, names: impl Iterator<Item = String>) -> Answering {
        let announced = names.map(|name| Announced {
            id: ServiceId::named(&name),
            name,
        });
        Answering {
            services: Arc::new(Mutex::new(announced.collect())),
            over: Arc::default(),
            instance,
            port: 7,
        }
    }

    fn query(service: u64, known: Vec<(u64, u16)>) -> Query {
        Query {
            number: 1,
            service,
            known,
        }
    }

    #[test]
    fn an_answer_has_what_was_asked_for_and_is_not_known() {
        let answering = answering(5, ["a", "b"].map(str::to_owned).into_iter());
        let b = ServiceId::named("b").number();
        let answer = answering.answer(&query(b, vec![(4, 1)])).unwrap();
        assert_eq!(answer.services, [(b, "b".to_owned())]);
        assert!(answering.answer(&query(b, vec![(4, 1), (5, 1)])).is_none());
        let all = query(0, vec![(5, 1)]);
        assert_eq!(answering.answer(&all).unwrap().services.len(), 2);
        assert!(answering.answer(&query(0, vec![(5, 2)])).is_none());
        assert!(answering.answer(&query(9, Vec::new())).is_none());
        let mut found = Vec::new();
        add(&mut found, answer.clone(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        add(&mut found, answer, IpAddr::V4(Ipv4Addr::BROADCAST));
        assert_eq!((found.len(), found[0].services.len()), (1, 1));
        // A name of another number.
        let liar = Answer {
            number: 1,
            instance: 6,
            port: 7,
            services: vec![(3, "kv".to_owned())],
        };
        add(&mut found, liar, IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(found[1].services[0].to_string(), "3");
    }

    #[test]
    fn a_thousand_services_are_found_with_little_traffic() {
        const HEADERS: usize = 28;
        let names = |endpoint: u64, count: usize| {
            (0..count).map(move |it| format!("service-{endpoint}-{it}"))
        };
        for endpoints in [1, 10, 100_u64] {
            let count = 1000 / usize::try_from(endpoints).unwrap();
            let all = (1..=endpoints).map(|it| answering(it, names(it, count)));
            let all: Vec<_> = all.collect();
            let mut found = Vec::new();
            let mut octets = 0;
            // The queries of a second. Of the answers to the first one, each third part is lost.
            for round in 0..6 {
                let bytes = query(0, known(&found)).emit();
                octets += bytes.len() + HEADERS;
                let query = Query::parse(&bytes).unwrap();
                let answers = all.iter().filter_map(|it| it.answer(&query));
                for (at, part) in answers.flat_map(|it| it.emit()).enumerate() {
                    octets += part.len() + HEADERS;
                    if round > 0 || at % 3 < 2 {
                        let part = Answer::parse(&part).unwrap();
                        add(&mut found, part, IpAddr::V4(Ipv4Addr::LOCALHOST));
                    }
                }
            }
            let services: usize = found.iter().map(|it| it.services.len()).sum();
            assert_eq!(services, 1000);
            assert!(octets <= 100_000, "{endpoints} endpoints: {octets} octets");
        }
    }

    #[test]
    fn services_of_one_instance_are_bounded() {
        let mut found = Vec::new();
        for part in 0..2000 {
            let ids = (0..100).map(|it| (1 + part * 100 + it, String::new()));
            let answer = Answer {
                number: 1,
                instance: 6,
                port: 7,
                services: ids.collect(),
            };
            add(&mut found, answer, IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        assert!(found[0].services.len() < SERVICES + 100);
    }
}
