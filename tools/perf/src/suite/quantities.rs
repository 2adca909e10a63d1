//! The quantities that the suite judges, each with its bar and its aim.

use serde::Serialize;

/// Which way a figure gets better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Better {
    /// At most the bar.
    Less,
    /// At least the bar.
    More,
    /// The bar, in every round.
    Exactly,
}

/// One quantity: a ratio, unless its words name a unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quantity {
    /// Its name in `--only`.
    pub(crate) id: &'static str,
    /// The subject of the measurement.
    pub(crate) words: &'static str,
    /// The denominator of the ratio; a unit if it is none.
    pub(crate) of: &'static str,
    /// Which way it gets better.
    pub(crate) better: Better,
    /// The promised bound; none of quantities for information.
    pub(crate) bar: Option<f64>,
    /// The desired bound.
    pub(crate) aim: Option<f64>,
}

/// A table of quantities: name, subject, what it is a ratio of, which way is better, and bar and aim where they exist.
macro_rules! quantities {
    ($($id:literal, $words:literal, $of:literal: $better:ident $($bar:literal, $aim:literal)?;)*) => {
        &[$(Quantity {
            id: $id,
            words: $words,
            of: $of,
            better: Better::$better,
            bar: first([$(Some($bar),)? None]),
            aim: first([$(Some($aim),)? None]),
        }),*]
    };
}

/// The first of one or two values.
const fn first<const N: usize>(values: [Option<f64>; N]) -> Option<f64> {
    values[0]
}

/// All quantities, in the order of the table. A bar without another aim has itself as the aim.
pub(crate) const QUANTITIES: &[Quantity] = quantities! {
    "ud-latency", "UD half round trip up to 1 KiB, polled", "raw UDP, spinning": Less 1.20, 1.12;
    "rc-latency", "RC half round trip up to 1 KiB, polled", "raw TCP, spinning": Less 1.20, 1.12;
    "ib-send-lat", "unmodified ib_send_lat", "raw TCP, spinning": Less 1.25, 1.25;
    "ib-write-lat", "unmodified ib_write_lat", "raw TCP, sleeping": Less 1.0, 1.0;
    "sleeping", "half round trip, one sleep for each message", "raw, sleeping": Less 1.25, 1.10;
    "sleeping-goodput", "goodput of ends that sleep while they wait, 64 KiB", "raw, sleeping": More 0.70, 0.90;
    "goodput-veth", "Write-Record goodput, 1472-octet segments", "raw UDP trains": More 0.60, 0.65;
    "goodput-large", "Write-Record goodput, segments of 64 KiB", "raw UDP": More 0.72, 0.80;
    "goodput-wire", "Write-Record goodput, cut by the sending host", "raw UDP trains": More 0.88, 0.92;
    "rc-goodput-large", "RC Write of 1 MiB, large FPDUs", "raw TCP": More 0.75, 0.80;
    "rc-goodput-wire", "RC Write of 1 MiB, FPDUs of Ethernet's MTU", "raw TCP": More 0.90, 0.95;
    "read-goodput", "RDMA Read of 1 MiB", "writes of the same queue pair": More 0.75, 0.75;
    "rate", "64-octet messages, one post for each", "raw single sends": More 0.90, 0.90;
    "rate-list", "64-octet messages, posted as lists of 64", "raw single sends": More 10.0, 15.0;
    "one-sided-write", "half round trip of an RC Write of 64 octets within one host, both ends spin on memory", "µs": Less 3.5, 3.5;
    "one-sided-read", "half of post to completion of an RC Read of 64 octets within one host, target asleep", "µs": Less 2.0, 2.0;
    "shm-latency", "half round trip of 64 octets by memory", "raw shared memory": Less;
    "shm-rate", "64-octet messages by memory, one post for each", "raw shared memory": More;
    "shm-rate-list", "64-octet messages by memory, posted as lists of 64", "M/s": More 12.0, 12.0;
    "shm-goodput", "RC goodput of 1 MiB by memory", "raw shared memory": More 0.70, 0.70;
    "cpu-udp-wire", "CPU time for each GiB, both sides, cut by the sending host", "raw UDP": Less 1.25, 1.25;
    "cpu-tcp", "CPU time for each GiB, both sides", "raw TCP": Less 1.30, 1.30;
    "peers-latency", "half round trip up to 32 KiB, better of UD and RC", "the peer": Less 1.0, 1.0;
    "peers-goodput", "goodput from 8 KiB on, better of UD and RC", "the peer, which carries no checksum": More 0.85, 1.0;
    "peers-shm", "half round trip up to 32 KiB by memory, better of UD and RC", "the peer in shared memory": Less 2.0, 1.3;
    "peers-shm-short", "goodput at 8 KiB by memory, better of UD and RC", "the peer in shared memory": More 0.8, 1.2;
    "peers-shm-goodput", "goodput from 64 KiB on by memory, better of UD and RC", "the peer in shared memory": More 1.0, 1.2;
    "thesis-latency", "Write-Record half round trip up to 2 KiB", "RC, better of Send and Write": Less 0.82, 0.82;
    "thesis-goodput", "Write-Record goodput at 1 KiB, messages one by one", "RC, better of Send and Write": More 1.5, 1.5;
    "loss-goodput", "Write-Record goodput under loss", "(1 - loss) of that without": More 0.95, 0.95;
    "loss-valid", "valid share under loss", "1 - observed loss": Exactly 1.0, 1.0;
    "loss-others", "Send and Read goodput under loss", "(1 - loss) of that without": More;
    "scale-ud", "cost of a message with many UD peers of one queue pair", "the same with two": Less 1.3, 1.3;
    "scale-rd", "cost of a message with many RD peers of one queue pair", "the same with two": Less 1.3, 1.3;
    "scale-rc", "cost of a message with many RC connections", "the same with two": Less 1.3, 1.3;
    "scale-ud-raw", "cost of a message with many UD peers of one queue pair", "plain sockets with as many": Less;
    "scale-rd-raw", "cost of a message with many RD peers of one queue pair", "plain sockets with as many": Less;
    "scale-rc-raw", "cost of a message with many RC connections", "plain sockets with as many": Less;
    "scale-cq", "cost of a message with 256 busy queue pairs on one completion queue", "the same with two": Less 1.3, 1.3;
    "scale-threads", "cost of a message of 8 threads on 8 UD queue pairs", "the same of one": Less 1.3, 1.3;
    "scale-disturbed", "cost of a message beside a peer that is gone and one that never polls", "the same without them": Less 1.1, 1.1;
    "memory-ud", "memory of the process for each UD peer", "KiB": Less 1.0, 1.0;
    "memory-rd", "memory of the process for each RD peer", "KiB": Less 1.0, 1.0;
    "memory-rc", "memory of the process for each idle RC connection", "KiB": Less 32.0, 32.0;
    "memory-kernel", "memory of the kernel for each end of it", "KiB": Less;
};

impl Quantity {
    /// The basis of its figures: a ratio, or a unit.
    pub(crate) fn basis(&self) -> String {
        match self.of {
            unit @ ("KiB" | "µs" | "M/s") => format!("in {unit}"),
            of => format!("over {of}"),
        }
    }
}

/// The quantity of this name.
pub(crate) fn find(id: &str) -> Option<&'static Quantity> {
    QUANTITIES.iter().find(|quantity| quantity.id == id)
}

/// The text of `--suite --list`.
pub(crate) fn list() -> String {
    let mut text = String::from("id                  bar    aim    what, as a ratio of\n");
    let number =
        |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    for quantity in QUANTITIES {
        text.push_str(&format!(
            "{:<17} {} {:<6} {:<6} {}, {}\n",
            quantity.id,
            quantity.better.sign(),
            number(quantity.bar),
            number(quantity.aim),
            quantity.words,
            quantity.of,
        ));
    }
    text
}

impl Better {
    /// As tables show it.
    pub(crate) const fn sign(self) -> char {
        match self {
            Self::Less => '≤',
            Self::More => '≥',
            Self::Exactly => '=',
        }
    }

    /// Whether a figure keeps to a bound.
    pub(crate) fn keeps(self, figure: f64, bound: f64) -> bool {
        match self {
            Self::Less => figure <= bound,
            Self::More => figure >= bound,
            Self::Exactly => (figure - bound).abs() < 1e-12,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_no_aim_is_below_its_bar() {
        for (at, quantity) in QUANTITIES.iter().enumerate() {
            let first = QUANTITIES.iter().position(|other| other.id == quantity.id);
            assert_eq!(first, Some(at), "{}", quantity.id);
            assert_eq!(quantity.bar.is_some(), quantity.aim.is_some());
            if let (Some(bar), Some(aim)) = (quantity.bar, quantity.aim) {
                assert!(quantity.better.keeps(aim, bar), "{}", quantity.id);
            }
            assert!(list().contains(quantity.words));
        }
    }

    #[test]
    fn a_figure_that_is_no_ratio_has_a_unit() {
        let basis = |id: &str| find(id).unwrap().basis();
        assert_eq!(basis("one-sided-write"), "in µs");
        assert_eq!(basis("shm-rate-list"), "in M/s");
        assert_eq!(basis("memory-rc"), "in KiB");
        assert_eq!(basis("shm-goodput"), "over raw shared memory");
    }
}
