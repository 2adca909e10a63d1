//! One peer reads the other's memory, whose program does nothing meanwhile: RDMA Read with a time limit.

use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, Destination, Operation, Rnic, SendWr, UdQpAttr, WcOpcode, WcStatus,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SOON: Duration = Duration::from_secs(10);
const LENGTH: usize = 1_000_000;

/// Address and key of the target, as the reader needs them.
struct Offer {
    qpn: u16,
    rkey: u32,
    addr: u64,
}

/// Octet i of the memory that is read.
fn octet(i: usize) -> u8 {
    (i * 7 + i / 1000).to_le_bytes()[0]
}

/// Lets others read its memory, and waits until the reader is done. Its device answers by itself.
fn target(tell: &mpsc::Sender<Offer>, done: &mpsc::Receiver<()>) -> Result<()> {
    let rnic = Rnic::open(Config::default())?;
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(16)?;
    let qp = pd.create_ud_qp(&UdQpAttr::new(&cq, &cq))?;
    let memory = Buffer::zeroed(LENGTH)?;
    memory.write(0, &(0..LENGTH).map(octet).collect::<Vec<_>>());
    let mr = pd.register(memory.region(), Access::REMOTE_READ)?;
    tell.send(Offer {
        qpn: qp.qpn(),
        rkey: mr.rkey(),
        addr: mr.addr(),
    })?;
    done.recv_timeout(SOON)?;
    println!("target: {}", qp.counters());
    Ok(())
}

fn reader(offer: &Offer) -> Result<()> {
    let rnic = Rnic::open(Config::default())?;
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(16)?;
    let qp = pd.create_ud_qp(&UdQpAttr::new(&cq, &cq))?;
    let memory = Buffer::zeroed(LENGTH)?;
    let mr = pd.register(memory.region(), Access::LOCAL_WRITE)?;
    qp.post_send(&[SendWr {
        wr_id: 1,
        operation: Operation::Read {
            rkey: offer.rkey,
            remote_addr: offer.addr,
            timeout: Some(Duration::from_secs(5)),
        },
        destination: Destination {
            ah: pd.create_ah("127.0.0.1".parse()?)?,
            qpn: offer.qpn,
            qkey: 0,
        },
        sges: &[mr.sge(..)],
        signaled: true,
        solicited: false,
    }])?;
    let wc = cq.wait(SOON)?.ok_or("nothing happened")?;
    if wc.status == WcStatus::ResponseTimeout {
        // The octets that came by then are valid.
        let map = qp.take_read_map(1).ok_or("no map of a Read that failed")?;
        println!("reader: in time came {} octets, {map:?}", wc.byte_len);
    }
    let read = memory.to_vec(0, LENGTH);
    let right = (0..LENGTH).filter(|i| read[*i] == octet(*i)).count();
    println!("reader: {:?} {}, {right} octets read", wc.opcode, wc.status);
    if wc.opcode == WcOpcode::RdmaRead && right == LENGTH {
        Ok(())
    } else {
        Err("all of it was expected".into())
    }
}

fn main() -> Result<()> {
    let (tell, told) = mpsc::channel();
    let (finish, finished) = mpsc::channel();
    let target = thread::spawn(move || target(&tell, &finished));
    let result = reader(&told.recv_timeout(SOON)?);
    finish.send(())?;
    target.join().map_err(|_| "the target panicked")??;
    result
}
