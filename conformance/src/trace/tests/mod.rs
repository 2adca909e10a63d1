//! Conversations that break no rule, each mutation that breaks one, and what captures do to them.

mod captured;
mod datagrams;
mod mutated;
mod reliable;
mod talk;

use super::{Item, Packet, Trace, Unjudged, What};

/// Result of a trace.
#[derive(Debug, Default)]
struct Came {
    /// Names of broken rules, with what was said of them.
    broken: Vec<(&'static str, String)>,
    unjudged: Vec<Unjudged>,
    fpdus: usize,
    datagrams: usize,
    startups: usize,
    iwarp: u64,
}

impl Came {
    fn rules(&self) -> Vec<&'static str> {
        let mut rules: Vec<_> = self.broken.iter().map(|(rule, _)| *rule).collect();
        rules.dedup();
        rules
    }
}

fn judged(link: u32, packets: &[Vec<u8>]) -> Came {
    let mut trace = Trace::new();
    let mut came = Came::default();
    let mut sink = |item: &Item<'_>| match item.what {
        What::Startup { .. } => came.startups += 1,
        What::Fpdu(_) => came.fpdus += 1,
        What::Datagram(_) => came.datagrams += 1,
        What::Finding(finding) => came.broken.push((finding.rule.id, finding.detail.clone())),
        What::Unjudged(why) => came.unjudged.push(why),
    };
    for (number, octets) in (1..).zip(packets) {
        let packet = Packet {
            number,
            at: number * 1000,
            link,
            octets,
            comment: None,
        };
        trace.take(&packet, &mut sink);
    }
    trace.finish(&mut sink);
    came.iwarp = trace.connections().1;
    came
}

const ETHERNET: u32 = 1;
