//! A server and several clients as tasks of the tokio runtime: `cargo run --example async_tokio --features tokio`.

use std::error::Error;
use std::net::SocketAddr;

use dgiwarp::{
    Access, AsyncCq, Buffer, Config, Destination, Mr, Operation, Pd, RecvWr, Rnic, SendWr, UdQp,
    UdQpAttr, Wc, WcStatus,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const LENGTH: usize = 64;
const CLIENTS: u8 = 3;
/// Each client has one message on its way.
const SLOTS: usize = CLIENTS as usize;
const ROUNDS: u8 = 100;

/// A queue pair with memory for some messages in, each of which has its own place, and one out.
struct Peer {
    pd: Pd,
    completions: AsyncCq,
    qp: UdQp,
    memory: Buffer,
    mr: Mr,
}

impl Peer {
    fn new(rnic: &Rnic) -> Result<Self> {
        let pd = rnic.alloc_pd();
        let completions = AsyncCq::new(rnic, 256)?;
        let qp = pd.create_ud_qp(&UdQpAttr::new(completions.cq(), completions.cq()))?;
        let memory = Buffer::zeroed((SLOTS + 1) * LENGTH)?;
        let mr = pd.register(memory.region(), Access::LOCAL_WRITE)?;
        Ok(Self {
            pd,
            completions,
            qp,
            memory,
            mr,
        })
    }

    fn post_recv(&self, slot: usize) -> Result<()> {
        let sges = [self.mr.sge(slot * LENGTH..(slot + 1) * LENGTH)];
        let wr_id = u64::try_from(slot)?;
        Ok(self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }])?)
    }

    fn send(&self, to: SocketAddr, octets: [u8; 2]) -> Result<()> {
        let start = SLOTS * LENGTH;
        self.memory.write(start, &octets);
        Ok(self.qp.post_send(&[SendWr {
            wr_id: 0,
            operation: Operation::Send { immediate: None },
            destination: Destination {
                ah: self.pd.create_ah(to.ip())?,
                qpn: to.port(),
                qkey: 0,
            },
            sges: &[self.mr.sge(start..start + octets.len())],
            signaled: false,
            solicited: false,
        }])?)
    }

    /// Waits for a message, and posts its receive again.
    async fn receive(&mut self) -> Result<(SocketAddr, [u8; 2])> {
        let wc: Wc = self.completions.next().await?;
        if wc.status != WcStatus::Success || wc.byte_len != 2 {
            return Err(format!("not a message: {wc:?}").into());
        }
        let slot = usize::try_from(wc.wr_id)?;
        let octets = self.memory.to_vec(slot * LENGTH, 2);
        self.post_recv(slot)?;
        Ok((wc.source.ok_or("nobody sent it")?, [octets[0], octets[1]]))
    }
}

/// Sends everything back, with the second octet doubled.
async fn server(mut peer: Peer) -> Result<()> {
    for _ in 0..u32::from(CLIENTS) * u32::from(ROUNDS) {
        let (source, [client, number]) = peer.receive().await?;
        peer.send(source, [client, number.wrapping_mul(2)])?;
    }
    Ok(())
}

async fn client(rnic: Rnic, server: SocketAddr, name: u8) -> Result<()> {
    let mut peer = Peer::new(&rnic)?;
    peer.post_recv(0)?;
    for number in 0..ROUNDS {
        peer.send(server, [name, number])?;
        let (_, answer) = peer.receive().await?;
        if answer != [name, number.wrapping_mul(2)] {
            return Err("a wrong answer".into());
        }
    }
    println!("client {name}: {ROUNDS} right answers");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let rnic = Rnic::open(Config::default())?;
    let peer = Peer::new(&rnic)?;
    for slot in 0..SLOTS {
        peer.post_recv(slot)?;
    }
    let address = SocketAddr::from(([127, 0, 0, 1], peer.qp.qpn()));
    let server = tokio::spawn(server(peer));
    let clients: Vec<_> = (1..=CLIENTS)
        .map(|name| tokio::spawn(client(rnic.clone(), address, name)))
        .collect();
    // A server that fails must not leave the clients waiting.
    let all = async {
        for client in clients {
            client.await??;
        }
        Ok(())
    };
    tokio::try_join!(all, async { server.await? }).map(|_| ())
}
