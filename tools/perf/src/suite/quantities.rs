//! What the suite judges: each quantity with its bar and its aim.

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
    /// What is measured.
    pub(crate) words: &'static str,
    /// What it is a ratio of; a unit if it is none.
    pub(crate) of: &'static str,
    /// Which way it gets better.
    pub(crate) better: Better,
    /// What is promised; none of what is for information.
    pub(crate) bar: Option<f64>,
    /// What is hoped for.
    pub(crate) aim: Option<f64>,
}

const fn at_most(
    id: &'static str,
    words: &'static str,
    of: &'static str,
    bar: f64,
    aim: f64,
) -> Quantity {
    Quantity {
        id,
        words,
        of,
        better: Better::Less,
        bar: Some(bar),
        aim: Some(aim),
    }
}

const fn at_least(
    id: &'static str,
    words: &'static str,
    of: &'static str,
    bar: f64,
    aim: f64,
) -> Quantity {
    Quantity {
        id,
        words,
        of,
        better: Better::More,
        bar: Some(bar),
        aim: Some(aim),
    }
}

/// All of them, in the order of the table. A bar without another aim has itself as the aim.
pub(crate) const QUANTITIES: &[Quantity] = &[
    at_most(
        "ud-latency",
        "UD half round trip up to 1 KiB, polled",
        "raw UDP, spinning",
        1.20,
        1.12,
    ),
    at_most(
        "rc-latency",
        "RC half round trip up to 1 KiB, polled",
        "raw TCP, spinning",
        1.20,
        1.12,
    ),
    at_most(
        "ib-send-lat",
        "unmodified ib_send_lat",
        "raw TCP, spinning",
        1.25,
        1.25,
    ),
    at_most(
        "ib-write-lat",
        "unmodified ib_write_lat",
        "raw TCP, sleeping",
        1.0,
        1.0,
    ),
    at_most(
        "sleeping",
        "half round trip, one sleep for each message",
        "raw, sleeping",
        1.25,
        1.10,
    ),
    at_least(
        "goodput-veth",
        "Write-Record goodput, 1472-octet segments",
        "raw UDP trains",
        0.60,
        0.65,
    ),
    at_least(
        "goodput-large",
        "Write-Record goodput, segments of 64 KiB",
        "raw UDP",
        0.72,
        0.80,
    ),
    at_least(
        "goodput-wire",
        "Write-Record goodput, cut by the sending host",
        "raw UDP trains",
        0.88,
        0.92,
    ),
    at_least(
        "rc-goodput-large",
        "RC Write of 1 MiB, large FPDUs",
        "raw TCP",
        0.75,
        0.80,
    ),
    at_least(
        "rc-goodput-wire",
        "RC Write of 1 MiB, FPDUs of Ethernet's MTU",
        "raw TCP",
        0.90,
        0.95,
    ),
    at_least(
        "read-goodput",
        "RDMA Read of 1 MiB",
        "writes of the same queue pair",
        0.75,
        0.75,
    ),
    at_least(
        "rate",
        "64-octet messages, one post for each",
        "raw single sends",
        0.90,
        0.90,
    ),
    at_least(
        "rate-list",
        "64-octet messages, posted as lists of 64",
        "raw single sends",
        10.0,
        15.0,
    ),
    at_most(
        "cpu-udp-wire",
        "CPU time for each GiB, both sides, cut by the sending host",
        "raw UDP",
        1.25,
        1.25,
    ),
    at_most(
        "cpu-tcp",
        "CPU time for each GiB, both sides",
        "raw TCP",
        1.30,
        1.30,
    ),
    at_most(
        "peers-latency",
        "half round trip up to 32 KiB, better of UD and RC",
        "the peer",
        1.0,
        1.0,
    ),
    at_least(
        "peers-goodput",
        "goodput from 8 KiB on, better of UD and RC",
        "the peer, which carries no checksum",
        0.85,
        1.0,
    ),
    Quantity {
        bar: None,
        aim: None,
        ..at_most(
            "peers-shm",
            "half round trip, better of UD and RC",
            "the peer in shared memory",
            1.0,
            1.0,
        )
    },
    Quantity {
        bar: None,
        aim: None,
        ..at_least(
            "peers-shm-goodput",
            "goodput from 8 KiB on, better of UD and RC",
            "the peer in shared memory",
            1.0,
            1.0,
        )
    },
    at_most(
        "thesis-latency",
        "Write-Record half round trip up to 2 KiB",
        "RC, better of Send and Write",
        0.82,
        0.82,
    ),
    at_least(
        "thesis-goodput",
        "Write-Record goodput at 1 KiB",
        "RC, better of Send and Write",
        1.5,
        1.5,
    ),
    at_least(
        "loss-goodput",
        "Write-Record goodput under loss",
        "(1 - loss) of that without",
        0.95,
        0.95,
    ),
    Quantity {
        better: Better::Exactly,
        ..at_least(
            "loss-valid",
            "valid share under loss",
            "1 - observed loss",
            1.0,
            1.0,
        )
    },
    Quantity {
        bar: None,
        aim: None,
        ..at_least(
            "loss-others",
            "Send and Read goodput under loss",
            "(1 - loss) of that without",
            1.0,
            1.0,
        )
    },
    at_most(
        "scale-ud",
        "cost of a message with many UD peers of one queue pair",
        "the same with two",
        1.3,
        1.3,
    ),
    at_most(
        "scale-rc",
        "cost of a message with many RC connections",
        "the same with two",
        1.3,
        1.3,
    ),
    Quantity {
        bar: None,
        aim: None,
        ..at_most(
            "scale-ud-raw",
            "cost of a message with many UD peers of one queue pair",
            "plain sockets with as many",
            1.0,
            1.0,
        )
    },
    Quantity {
        bar: None,
        aim: None,
        ..at_most(
            "scale-rc-raw",
            "cost of a message with many RC connections",
            "plain sockets with as many",
            1.0,
            1.0,
        )
    },
    at_most(
        "scale-cq",
        "cost of a message with 256 busy queue pairs on one completion queue",
        "the same with two",
        1.3,
        1.3,
    ),
    at_most(
        "scale-threads",
        "cost of a message of 8 threads on 8 UD queue pairs",
        "the same of one",
        1.3,
        1.3,
    ),
    at_most(
        "scale-disturbed",
        "cost of a message beside a peer that is gone and one that never looks",
        "the same without them",
        1.1,
        1.1,
    ),
    at_most(
        "memory-ud",
        "memory of the process for each UD peer",
        "KiB",
        1.0,
        1.0,
    ),
    at_most(
        "memory-rc",
        "memory of the process for each idle RC connection",
        "KiB",
        32.0,
        32.0,
    ),
    Quantity {
        bar: None,
        aim: None,
        ..at_most(
            "memory-kernel",
            "memory of the kernel for each end of it",
            "KiB",
            1.0,
            1.0,
        )
    },
];

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
}
