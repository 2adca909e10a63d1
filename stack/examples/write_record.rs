//! RDMA Write-Record over a network that loses a tenth of the datagrams: the target learns which octets are valid.
//!
//! The target's device loses datagrams on purpose (`Config::fault`); set the same for any program with
//! `DGIWARP_FAULT=drop=0.1,seed=1`.

use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, Destination, Fault, Operation, Rnic, SendWr, UdQpAttr, WcOpcode,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SOON: Duration = Duration::from_secs(10);
const LENGTH: usize = 100_000;

/// Address and key of the target, as the source needs them.
struct Target {
    qpn: u16,
    rkey: u32,
    remote_addr: u64,
}

/// Segments as on Ethernet, so that there are many of them.
fn config() -> Config {
    let mut config = Config::default();
    config.max_mtu = 1500;
    config
}

fn target(tell: &mpsc::Sender<Target>) -> Result<()> {
    let mut config = config();
    config.fault = Some(Fault {
        drop: 0.1,
        seed: 1,
        ..Fault::default()
    });
    let rnic = Rnic::open(config)?;
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(16)?;
    let qp = pd.create_ud_qp(&UdQpAttr {
        record_slots: 16,
        ..UdQpAttr::new(&cq, &cq)
    })?;
    let memory = Buffer::zeroed(LENGTH)?;
    let mr = pd.register(memory.region(), Access::REMOTE_WRITE)?;
    tell.send(Target {
        qpn: qp.qpn(),
        rkey: mr.rkey(),
        remote_addr: mr.addr(),
    })?;

    // The record is complete when all octets are there, or, as here, when no more came for 200 ms.
    let wc = cq.wait(SOON)?.ok_or("no record")?;
    if wc.opcode != WcOpcode::WriteRecord {
        return Err("not a record".into());
    }
    let record = qp.record(wc.record()).ok_or("the record is gone")?;
    println!(
        "target: {} of {} octets are valid, in the ranges",
        record.valid, record.length
    );
    for (start, end) in &record.ranges {
        println!("  {start:6} to {end}");
        let at = usize::try_from(*start)?;
        let octets = memory.to_vec(at, usize::try_from(end - start)?);
        if octets.iter().any(|octet| *octet != 7) {
            return Err("a valid octet is wrong".into());
        }
    }
    qp.release_record(wc.record());
    println!("target: {}", qp.counters());
    if record.ranges.len() < 2 {
        return Err("something should be missing".into());
    }
    Ok(())
}

fn source(target: &Target) -> Result<()> {
    let rnic = Rnic::open(config())?;
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(16)?;
    let qp = pd.create_ud_qp(&UdQpAttr::new(&cq, &cq))?;
    let message = Buffer::zeroed(LENGTH)?;
    message.write(0, &[7; LENGTH]);
    let mr = pd.register(message.region(), Access::empty())?;
    qp.post_send(&[SendWr {
        wr_id: 1,
        operation: Operation::WriteRecord {
            rkey: target.rkey,
            remote_addr: target.remote_addr,
            immediate: None,
        },
        destination: Destination {
            ah: pd.create_ah("127.0.0.1".parse()?)?,
            qpn: target.qpn,
            qkey: 0,
        },
        sges: &[mr.sge(..)],
        signaled: true,
        solicited: false,
    }])?;
    let wc = cq.wait(SOON)?.ok_or("no completion")?;
    println!("source: {:?}: {}", wc.status, qp.counters());
    Ok(())
}

fn main() -> Result<()> {
    let (tell, told) = mpsc::channel();
    let target = thread::spawn(move || target(&tell));
    source(&told.recv_timeout(SOON)?)?;
    target.join().map_err(|_| "the target panicked")?
}
