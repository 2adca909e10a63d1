//! Raw TCP between two threads of this process: what the programs are compared with.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use crate::error::{IoContext, PerfError, Result};
use crate::machine::clock;
use crate::machine::host::{Cpus, Side, Wait};
use crate::stats;

/// The median half round trip of `iters` messages of `size` octets, in microseconds.
pub(crate) fn half_round_trip(wait: Wait, size: usize, iters: u32, cpus: &Cpus) -> Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).during("listen on a TCP port")?;
    let address = listener.local_addr().during("read a local port")?;
    let samples = thread::scope(|scope| {
        let server = scope.spawn(|| -> Result<()> {
            let _ = cpus.place(Side::Server)?;
            let (stream, _) = listener.accept().during("accept a TCP connection")?;
            let mut end = End::new(stream, wait, size)?;
            for _ in 0..iters {
                end.receive()?;
                end.send()?;
            }
            Ok(())
        });
        let client = scope.spawn(|| -> Result<Vec<u64>> {
            let _ = cpus.place(Side::Client)?;
            let stream = TcpStream::connect(address).during("connect over TCP")?;
            let mut end = End::new(stream, wait, size)?;
            let mut samples = Vec::with_capacity(usize::try_from(iters).unwrap_or(0));
            for _ in 0..iters {
                let start = clock::now();
                end.send()?;
                end.receive()?;
                samples.push(clock::nanoseconds(start, clock::now()) / 2);
            }
            Ok(samples)
        });
        let samples = joined(client.join());
        joined(server.join()).and(samples)
    })?;
    Ok(stats::percentile(&stats::histogram(&samples), 0.5).unwrap_or(0.0))
}

fn joined<T>(outcome: thread::Result<Result<T>>) -> Result<T> {
    outcome.unwrap_or_else(|_| Err(PerfError::PeerGone))
}

struct End {
    stream: TcpStream,
    octets: Vec<u8>,
}

impl End {
    fn new(stream: TcpStream, wait: Wait, size: usize) -> Result<Self> {
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_nonblocking(wait == Wait::Spin))
            .during("set TCP options")?;
        let octets = vec![0; size];
        Ok(Self { stream, octets })
    }

    /// A message is far below what a socket takes at once.
    fn send(&mut self) -> Result<()> {
        self.stream
            .write_all(&self.octets)
            .during("write to a TCP connection")
    }

    fn receive(&mut self) -> Result<()> {
        let mut rest = self.octets.as_mut_slice();
        while !rest.is_empty() {
            match self.stream.read(rest) {
                Ok(0) => return Err(PerfError::PeerGone),
                Ok(length) => rest = rest.split_at_mut(length).1,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error).during("read from a TCP connection"),
            }
        }
        Ok(())
    }
}
