//! All connections of a trace.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::capture::file::Packet;
use super::capture::packet::{self, Inside, Tcp};
use super::connection::Connection;
use super::datagram::{Datagrams, Route};
use super::{Out, Sink, What};

/// Connections that are kept at a time; beyond, the one that was silent for longest makes room.
const MOST: usize = 65_536;

type Ends = [SocketAddr; 2];

#[derive(Debug)]
struct Flow {
    connection: Connection,
    latest: u64,
    /// It has ended and is kept for what comes of it once more.
    over: bool,
}

/// Everything that is recorded.
#[derive(Debug, Default)]
pub struct Trace {
    flows: BTreeMap<Ends, Flow>,
    connections: u64,
    iwarp: u64,
    datagrams: Datagrams,
    packet: u64,
    at: u64,
}

impl Trace {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many TCP connections were seen, and in how many of them iWARP.
    #[must_use]
    pub fn connections(&self) -> (u64, u64) {
        let open = self
            .flows
            .values()
            .filter(|flow| flow.connection.is_iwarp());
        (self.connections, self.iwarp + open.count() as u64)
    }

    /// How many datagrams of the mapping to UDP were seen.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        self.datagrams.count
    }

    /// Takes the next packet of a file.
    pub fn take(&mut self, packet: &Packet<'_>, sink: &mut Sink<'_>) {
        (self.packet, self.at) = (packet.number, packet.at);
        let Some(addressed) = packet::parse(packet.link, packet.octets) else {
            return;
        };
        match addressed.inside {
            Inside::Tcp(tcp) => self.tcp(addressed.from, addressed.to, &tcp, sink),
            Inside::Udp {
                payload,
                whole_only,
                no_checksum,
            } => {
                let route = Route {
                    from: addressed.from,
                    to: addressed.to,
                    whole_only,
                    no_checksum,
                };
                self.udp(route, payload, packet.comment, sink);
            }
            Inside::UdpInPart => {}
        }
    }

    /// No more packets come.
    pub fn finish(&mut self, sink: &mut Sink<'_>) {
        for (ends, flow) in std::mem::take(&mut self.flows) {
            self.close(ends, flow, sink);
        }
    }

    fn udp(&mut self, route: Route, payload: &[u8], comment: Option<&str>, sink: &mut Sink<'_>) {
        let mut out = Out {
            packet: self.packet,
            at: self.at,
            ends: [route.from, route.to],
            connection: 0,
            sink,
        };
        self.datagrams
            .take(route, payload, comment, &mut |seen, broken| {
                out.say(0, What::Datagram(seen));
                for (rule, detail) in broken {
                    out.finding(0, rule, detail, seen.octets);
                }
            });
    }

    fn tcp(&mut self, from: SocketAddr, to: SocketAddr, tcp: &Tcp<'_>, sink: &mut Sink<'_>) {
        let (ends, way) = if from <= to {
            ([from, to], 0)
        } else {
            ([to, from], 1)
        };
        if let Some(flow) = self.flows.get(&ends)
            && (flow.connection.is_another(way, tcp)
                || flow.over && !tcp.payload.is_empty() && !flow.connection.is_old(way, tcp))
            && let Some(old) = self.flows.remove(&ends)
        {
            self.close(ends, old, sink);
        }
        if !self.flows.contains_key(&ends) {
            if tcp.payload.is_empty() && !tcp.syn {
                return;
            }
            self.make_room(sink);
            self.connections += 1;
            let connection = Connection::new(self.connections);
            let latest = self.packet;
            let flow = Flow {
                connection,
                latest,
                over: false,
            };
            self.flows.insert(ends, flow);
        }
        let Some(flow) = self.flows.get_mut(&ends) else {
            return;
        };
        flow.latest = self.packet;
        if flow.over {
            return;
        }
        let mut out = Out {
            packet: self.packet,
            at: self.at,
            ends,
            connection: flow.connection.number,
            sink,
        };
        flow.connection.take(way, tcp, &mut out);
        if flow.connection.is_over() {
            flow.connection.finish(&mut out);
            flow.over = true;
        }
    }

    fn make_room(&mut self, sink: &mut Sink<'_>) {
        if self.flows.len() < MOST {
            return;
        }
        // Rare enough to look at all; a quarter goes, so that it stays so.
        let mut ages: Vec<_> = self.flows.values().map(|flow| flow.latest).collect();
        ages.sort_unstable();
        let limit = ages.get(MOST / 4).copied().unwrap_or(u64::MAX);
        let old: Vec<_> = (self.flows.iter())
            .filter(|(_, flow)| flow.latest <= limit)
            .map(|(ends, _)| *ends)
            .collect();
        for ends in old {
            if let Some(flow) = self.flows.remove(&ends) {
                self.close(ends, flow, sink);
            }
        }
    }

    fn close(&mut self, ends: Ends, mut flow: Flow, sink: &mut Sink<'_>) {
        if !flow.over {
            flow.connection.finish(&mut Out {
                packet: self.packet,
                at: self.at,
                ends,
                connection: flow.connection.number,
                sink,
            });
        }
        self.iwarp += u64::from(flow.connection.is_iwarp());
    }
}
