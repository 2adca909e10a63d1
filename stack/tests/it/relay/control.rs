//! The control connections between the relay and the two peers: frames of six words.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Longer than anything takes; a peer that is silent this long is stuck.
const STUCK: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Of the receiver: QPN, rkey and address of its memory.
    Receiver { qpn: u64, rkey: u64, addr: u64 },
    /// Of the sender: the UDP port that its datagrams come from.
    Sender { port: u64 },
    /// To both: the port that the relay receives on, the one that it forwards from, the longest message, and the
    /// receiver's report.
    Welcome {
        from: u64,
        longest: u64,
        to: u64,
        rkey: u64,
        addr: u64,
    },
    /// Datagrams that arrived so far.
    Progress { arrived: u64 },
    /// Of the sender: a batch is over; datagrams sent so far.
    Sent { datagrams: u64 },
    /// To the receiver: everything of the batch was forwarded, and it took this long.
    Forwarded { millis: u64 },
    /// The receiver is done with the batch.
    Settled,
}

impl Frame {
    fn words(self) -> [u64; 6] {
        match self {
            Self::Receiver { qpn, rkey, addr } => [1, qpn, rkey, addr, 0, 0],
            Self::Sender { port } => [2, port, 0, 0, 0, 0],
            Self::Welcome {
                from,
                longest,
                to,
                rkey,
                addr,
            } => [3, from, longest, to, rkey, addr],
            Self::Progress { arrived } => [4, arrived, 0, 0, 0, 0],
            Self::Sent { datagrams } => [5, datagrams, 0, 0, 0, 0],
            Self::Forwarded { millis } => [6, millis, 0, 0, 0, 0],
            Self::Settled => [7, 0, 0, 0, 0, 0],
        }
    }

    fn parse([kind, a, b, c, d, e]: [u64; 6]) -> Self {
        match kind {
            1 => Self::Receiver {
                qpn: a,
                rkey: b,
                addr: c,
            },
            2 => Self::Sender { port: a },
            3 => Self::Welcome {
                from: a,
                longest: b,
                to: c,
                rkey: d,
                addr: e,
            },
            4 => Self::Progress { arrived: a },
            5 => Self::Sent { datagrams: a },
            6 => Self::Forwarded { millis: a },
            7 => Self::Settled,
            kind => panic!("no frame {kind}"),
        }
    }
}

pub(crate) struct Control(pub(crate) TcpStream);

impl Control {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(STUCK)).unwrap();
        Self(stream)
    }

    pub(crate) fn connect(address: &str) -> Self {
        Self::new(TcpStream::connect(address).unwrap())
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        let octets: Vec<u8> = frame
            .words()
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        self.0.write_all(&octets).expect("the other end lives");
    }

    #[track_caller]
    pub(crate) fn receive(&mut self) -> Frame {
        let mut octets = [0; 48];
        let read = self.0.read_exact(&mut octets);
        read.expect("the other end lives and is not stuck");
        let mut words = octets.chunks_exact(8);
        Frame::parse(std::array::from_fn(|_| {
            u64::from_le_bytes(words.next().unwrap().try_into().unwrap())
        }))
    }
}
