//! A source that is no file: octets made on the way, received as a file over a queue pair of this host.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dgiwarp::{Config, Rnic};
use dgiwarp_transfer::disk::{Root, TreeSink, TreeSinkOptions};
use dgiwarp_transfer::engine::{Failure, Next};
use dgiwarp_transfer::wire::{Entry, FileKind};
use dgiwarp_transfer::{Connection, Control, Event, Options, Port, Source, receive, send};

const SIZE: u64 = 64 << 20;

/// One file whose octets count from 0.
#[derive(Debug)]
struct Counting;

impl Source for Counting {
    fn next(&self, file: u32) -> Next {
        if file > 0 {
            return Next::End;
        }
        Next::Entry(Entry {
            kind: FileKind::File,
            mode: 0o644,
            modified: (1_700_000_000, 0),
            size: SIZE,
            identity: [0; 16],
            name: b"counting".to_vec(),
            target: Vec::new(),
            attributes: None,
        })
    }

    fn read(&self, _file: u32, offset: u64, octets: &mut [u8]) -> Result<(), Failure> {
        for (at, octet) in (offset..).zip(octets) {
            *octet = at.to_be_bytes()[7];
        }
        Ok(())
    }

    fn check(&self, _file: u32) -> Result<(), Failure> {
        Ok(())
    }

    fn close(&self, _file: u32) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join("dgiwarp-transfer-example");
    std::fs::create_dir_all(&folder)?;
    let options = Options {
        token: *b"sixteen octets !",
        ..Options::default()
    };

    let port = Port::rc(&Rnic::open(Config::default())?, "127.0.0.1:0".parse()?)?;
    let address = port.local_addr()?;
    let root = Arc::new(Root::open(&folder)?);
    let how = TreeSinkOptions {
        rewrite: true,
        ..TreeSinkOptions::default()
    };
    let sink = Arc::new(TreeSink::new(root, "".into(), how));
    let receiving = thread::spawn(move || {
        let control = Control::new()?;
        let peer = port.accept(&options.token, None, Duration::from_secs(5), &control)?;
        receive(peer, sink, &options, &control, &mut |_| {})
    });

    let connection = Connection::rc(&Rnic::open(Config::default())?, address)?;
    let mut placed = 0;
    let mut note = |event: &Event| {
        if let Event::Placed { octets, .. } = event {
            placed += octets;
        }
    };
    let summary = send(
        connection,
        Arc::new(Counting),
        &options,
        &Control::new()?,
        &mut note,
    )?;
    receiving.join().map_err(|_| "the sink panicked")??;
    println!("{placed} octets are placed: {summary:?}");
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
