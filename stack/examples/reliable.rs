//! A question to three peers, and their answers: reliable datagrams.
//!
//! One queue pair sends to all of them and receives from all of them, without a connection to any. Messages arrive once and in order, and each Send completes
//! when it is placed at its peer.

use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, AddressHandle, Buffer, Config, Cq, Destination, Mr, QpAttr, RcSendWr, RdQp, RdQpAttr,
    RdSendWr, RecvWr, Rnic, Wc, WcOpcode, WcStatus,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SOON: Duration = Duration::from_secs(10);
/// Octets of each receive.
const ROOM: usize = 256;
const RECEIVES: usize = 8;
const PEERS: usize = 3;
const QUESTIONS: usize = 20;

/// A queue pair with registered memory: receives first, then the room of messages to send.
struct Peer {
    cq: Cq,
    qp: RdQp,
    memory: Buffer,
    mr: Mr,
    ah: AddressHandle,
}

impl Peer {
    fn new() -> Result<Self> {
        let rnic = Rnic::open(Config::default())?;
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(256)?;
        let qp = pd.create_rd_qp(&RdQpAttr::new(QpAttr::new(&cq, &cq)))?;
        let memory = Buffer::zeroed((RECEIVES + PEERS) * ROOM)?;
        let mr = pd.register(memory.region(), Access::LOCAL_WRITE)?;
        let ah = pd.create_ah(Ipv4Addr::LOCALHOST.into())?;
        let this = Self {
            cq,
            qp,
            memory,
            mr,
            ah,
        };
        (0..RECEIVES).try_for_each(|slot| this.post_recv(slot))?;
        Ok(this)
    }

    fn post_recv(&self, slot: usize) -> Result<()> {
        let sges = [self.mr.sge(slot * ROOM..(slot + 1) * ROOM)];
        let wr_id = u64::try_from(slot)?;
        Ok(self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }])?)
    }

    /// Posts a Send from one of the places behind the receives.
    fn send(&self, place: usize, qpn: u16, text: &str) -> Result<()> {
        let begin = (RECEIVES + place) * ROOM;
        self.memory.write(begin, text.as_bytes());
        let sges = [self.mr.sge(begin..begin + text.len())];
        self.qp.post_send(&[RdSendWr {
            destination: Destination {
                ah: self.ah.clone(),
                qpn,
                qkey: 0,
            },
            wr: RcSendWr::send(u64::try_from(place)?, &sges),
        }])?;
        Ok(())
    }

    /// The next completion.
    fn wait(&self) -> Result<Wc> {
        let wc = self.cq.wait(SOON)?.ok_or("nothing came")?;
        match wc.status {
            WcStatus::Success => Ok(wc),
            status => Err(status.to_string().into()),
        }
    }

    /// The sender of a message and its text; its receive is posted again.
    fn take(&self, wc: &Wc) -> Result<(u16, String)> {
        let slot = usize::try_from(wc.wr_id)?;
        let octets = self
            .memory
            .to_vec(slot * ROOM, usize::try_from(wc.byte_len)?);
        self.post_recv(slot)?;
        let source = wc.source.ok_or("no source")?;
        Ok((source.port(), String::from_utf8(octets)?))
    }
}

/// Answers so many questions.
fn answer(tell: &mpsc::Sender<u16>) -> Result<()> {
    let peer = Peer::new()?;
    tell.send(peer.qp.qpn())?;
    let (mut answered, mut placed) = (0, 0);
    while placed < QUESTIONS {
        let wc = peer.wait()?;
        if wc.opcode == WcOpcode::Send {
            placed += 1;
            continue;
        }
        let (qpn, question) = peer.take(&wc)?;
        if question != format!("question {answered}") {
            return Err(format!("{question:?} is out of order").into());
        }
        answered += 1;
        peer.send(0, qpn, "an answer")?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let (tell, told) = mpsc::channel();
    let peers: Vec<_> = (0..PEERS)
        .map(|_| {
            let tell = tell.clone();
            thread::spawn(move || answer(&tell))
        })
        .collect();
    let qpns = (0..PEERS)
        .map(|_| told.recv_timeout(SOON))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let asker = Peer::new()?;
    let mut answers = 0;
    for number in 0..QUESTIONS {
        let question = format!("question {number}");
        for (place, qpn) in qpns.iter().enumerate() {
            asker.send(place, *qpn, &question)?;
        }
        // All are placed, and all are answered, before the next one.
        for _ in 0..2 * PEERS {
            let wc = asker.wait()?;
            if wc.opcode == WcOpcode::Recv {
                asker.take(&wc)?;
                answers += 1;
            }
        }
    }
    for peer in peers {
        peer.join().map_err(|_| "a peer panicked")??;
    }
    println!("{answers} answers of {PEERS} peers");
    Ok(())
}
