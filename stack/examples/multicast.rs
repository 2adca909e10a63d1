//! One Send, three receivers: a multicast group on the loopback interface.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, Destination, GroupInterface, Operation, RecvWr, Rnic, SendWr, UdQpAttr,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SOON: Duration = Duration::from_secs(10);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 255, 71, 17));
const NEWS: &[u8] = b"news for everybody";

fn member(name: usize, ready: &mpsc::Sender<()>) -> Result<()> {
    let rnic = Rnic::open(Config::default())?;
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(16)?;
    let qp = pd.create_ud_qp(&UdQpAttr::new(&cq, &cq))?;
    let memory = Buffer::zeroed(64)?;
    let mr = pd.register(memory.region(), Access::LOCAL_WRITE)?;
    let sges = [mr.sge(..)];
    qp.post_recv(&[RecvWr {
        wr_id: 1,
        sges: &sges,
    }])?;
    qp.attach_group(GROUP, Some(GroupInterface::Address(LOOPBACK)))?;
    ready.send(())?;

    let wc = cq.wait(SOON)?.ok_or("nothing came")?;
    let source = wc.source.ok_or("it failed")?;
    let octets = memory.to_vec(0, usize::try_from(wc.byte_len)?);
    println!(
        "member {name}: {source} says: {}",
        String::from_utf8_lossy(&octets)
    );
    if octets == NEWS {
        Ok(())
    } else {
        Err("something else was said".into())
    }
}

fn send() -> Result<()> {
    let rnic = Rnic::open(Config::default())?;
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(16)?;
    let qp = pd.create_ud_qp(&UdQpAttr::new(&cq, &cq))?;
    let memory = Buffer::zeroed(64)?;
    memory.write(0, NEWS);
    let mr = pd.register(memory.region(), Access::empty())?;
    qp.post_send(&[SendWr {
        wr_id: 1,
        operation: Operation::Send { immediate: None },
        destination: Destination {
            // The source address chooses the interface. All members share one port, so there is no QPN to give.
            ah: pd.create_ah_from(GROUP, 0, Some(LOOPBACK))?,
            qpn: 0,
            qkey: 0,
        },
        sges: &[mr.sge(..NEWS.len())],
        signaled: true,
        solicited: false,
    }])?;
    cq.wait(SOON)?.ok_or("no completion")?;
    Ok(())
}

fn main() -> Result<()> {
    let (ready, is_ready) = mpsc::channel();
    let members: Vec<_> = (1..=3)
        .map(|name| {
            let ready = ready.clone();
            thread::spawn(move || member(name, &ready))
        })
        .collect();
    for _ in &members {
        is_ready.recv_timeout(SOON)?;
    }
    send()?;
    for member in members {
        member.join().map_err(|_| "a member panicked")??;
    }
    Ok(())
}
