//! Two peers, a question and an answer: UD Send and Recv.
//!
//! Each peer is a thread with a device of its own, as it would be on a host of its own. The number that one needs of the other,
//! a UDP port, goes through a channel of the standard library; between hosts it goes by whatever means.

use std::error::Error;
use std::net::IpAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, Cq, Destination, Mr, Operation, Pd, RecvWr, Rnic, SendWr, UdQp,
    UdQpAttr,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SOON: Duration = Duration::from_secs(10);
const LENGTH: usize = 1024;

/// A queue pair with registered memory: the first half for receiving, the second for sending.
struct Peer {
    pd: Pd,
    cq: Cq,
    qp: UdQp,
    memory: Buffer,
    mr: Mr,
}

impl Peer {
    fn new() -> Result<Self> {
        let rnic = Rnic::open(Config::default())?;
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(16)?;
        let qp = pd.create_ud_qp(&UdQpAttr::new(&cq, &cq))?;
        let memory = Buffer::zeroed(2 * LENGTH)?;
        let mr = pd.register(memory.region(), Access::LOCAL_WRITE)?;
        let sges = [mr.sge(..LENGTH)];
        qp.post_recv(&[RecvWr {
            wr_id: 1,
            sges: &sges,
        }])?;
        Ok(Self {
            pd,
            cq,
            qp,
            memory,
            mr,
        })
    }

    fn send(&self, address: IpAddr, qpn: u16, text: &str) -> Result<()> {
        self.memory.write(LENGTH, text.as_bytes());
        self.qp.post_send(&[SendWr {
            wr_id: 2,
            operation: Operation::Send { immediate: None },
            destination: Destination {
                ah: self.pd.create_ah(address)?,
                qpn,
                qkey: 0,
            },
            sges: &[self.mr.sge(LENGTH..LENGTH + text.len())],
            // No completion unless it fails.
            signaled: false,
            solicited: false,
        }])?;
        Ok(())
    }

    /// Waits for a message; returns who sent it and what it says.
    fn receive(&self) -> Result<(std::net::SocketAddr, String)> {
        let wc = self.cq.wait(SOON)?.ok_or("nothing came")?;
        let source = wc.source.ok_or("it failed")?;
        let octets = self.memory.to_vec(0, usize::try_from(wc.byte_len)?);
        Ok((source, String::from_utf8(octets)?))
    }
}

fn server(tell: &mpsc::Sender<u16>) -> Result<()> {
    let peer = Peer::new()?;
    tell.send(peer.qp.qpn())?;
    let (source, question) = peer.receive()?;
    println!("server: {source} asks: {question}");
    peer.send(source.ip(), source.port(), "forty-two")
}

fn client(qpn: u16) -> Result<String> {
    let peer = Peer::new()?;
    peer.send("127.0.0.1".parse()?, qpn, "six by seven?")?;
    let (source, answer) = peer.receive()?;
    println!("client: {source} answers: {answer}");
    Ok(answer)
}

fn main() -> Result<()> {
    let (tell, told) = mpsc::channel();
    let server = thread::spawn(move || server(&tell));
    let answer = client(told.recv_timeout(SOON)?)?;
    server.join().map_err(|_| "the server panicked")??;
    if answer == "forty-two" {
        Ok(())
    } else {
        Err("another answer was expected".into())
    }
}
