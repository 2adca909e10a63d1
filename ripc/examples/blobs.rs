//! A store of blobs of 100 MiB: `cargo run --release --example blobs -p dgiwarp-ripc`.
//!
//! The caller's device reads or writes the octets where they lie: neither end copies them.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use dgiwarp_ripc::{
    Block, CallOptions, Code, Config, Endpoint, Item, MethodId, Payload, Request, Status,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const PUT: MethodId = MethodId::named("put");
const GET: MethodId = MethodId::named("get");
const LENGTH: usize = 100 << 20;
const PIECE: usize = 1 << 20;

/// The blob that was put last.
#[derive(Default)]
struct Store(Mutex<Option<Block>>);

impl Store {
    fn handle(&self, request: Request) -> std::result::Result<Payload, Status> {
        let mut blob = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (request.method, request.payload.items.into_iter().next()) {
            (PUT, Some(Item::Long(block))) => {
                *blob = Some(block);
                Ok(Payload::new())
            }
            (PUT, _) => Err(Status::new(Code::InvalidArgument, "a long item is put")),
            (GET, _) => {
                let blob = blob.clone();
                let blob = blob.ok_or_else(|| Status::new(Code::NotFound, "no blob"))?;
                Ok(Payload::long(blob))
            }
            _ => Err(Status::new(Code::Unimplemented, "put, get")),
        }
    }
}

/// Octets of a piece of the blob.
fn piece(number: usize) -> Vec<u8> {
    vec![number.to_le_bytes()[0]; PIECE]
}

fn main() -> Result<()> {
    let server = Endpoint::open(Config::listening("127.0.0.1:0".parse()?))?;
    let store = Arc::new(Store::default());
    server.serve("blobs", move |request| store.handle(request))?;
    let address = server.local_addr().ok_or("it listens")?;

    let endpoint = Endpoint::open(Config::default())?;
    let blobs = endpoint.client("blobs".parse()?, vec![address]);
    let block = endpoint.block(LENGTH)?;
    for number in 0..LENGTH / PIECE {
        block.write(number * PIECE, &piece(number))?;
    }
    let options = CallOptions::default().and_room(LENGTH);
    // The server reads it.
    blobs.call(PUT, Payload::long(block), &options)?;
    // And writes it into room of the caller's.
    let reply = blobs.call(GET, Payload::new(), &options)?;
    let Some(Item::Long(block)) = reply.items.first() else {
        return Err("a long item was expected".into());
    };
    let mut octets = vec![0; PIECE];
    for number in 0..LENGTH / PIECE {
        block.read(number * PIECE, &mut octets)?;
        if octets != piece(number) {
            return Err(format!("piece {number} is another").into());
        }
    }
    println!("{} bytes came back as they were", block.len());
    Ok(())
}
