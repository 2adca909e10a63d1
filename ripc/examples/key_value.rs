//! A key-value store and its clients: `cargo run --example key_value -p dgiwarp-ripc`.
//!
//! The server and each client are endpoints of their own, as they would be on hosts of their own.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::thread;

use dgiwarp_ripc::{
    CallOptions, Client, Code, Config, Endpoint, MethodId, Payload, Request, Status,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const PUT: MethodId = MethodId::named("put");
const GET: MethodId = MethodId::named("get");
const COUNT: MethodId = MethodId::named("count");
const CLIENTS: usize = 4;
const KEYS: usize = 100;

/// Values by key; the lock is held for a moment only.
#[derive(Default)]
struct Store(Mutex<HashMap<Vec<u8>, Vec<u8>>>);

impl Store {
    fn handle(&self, request: &Request) -> std::result::Result<Payload, Status> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = request.payload.bytes(0);
        match request.method {
            PUT => {
                values.insert(key, request.payload.bytes(1));
                Ok(Payload::new())
            }
            GET => {
                let value = values.get(&key);
                let value = value.ok_or_else(|| Status::new(Code::NotFound, "no such key"))?;
                Ok(Payload::short(value.clone()))
            }
            COUNT => Ok(Payload::short(values.len().to_string())),
            _ => Err(Status::new(Code::Unimplemented, "put, get, count")),
        }
    }
}

/// Puts its own keys, and reads them back.
fn client(store: &Client, number: usize) -> Result<()> {
    let options = CallOptions::default();
    for key in 0..KEYS {
        let key = format!("{number}/{key}");
        let payload = Payload::short(key.clone()).and_short(format!("value of {key}"));
        store.call(PUT, payload, &options)?;
        let value = store.call(GET, Payload::short(key.clone()), &options)?;
        if value.bytes(0) != format!("value of {key}").into_bytes() {
            return Err(format!("another value of {key}").into());
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let server = Endpoint::open(Config::listening("127.0.0.1:0".parse()?))?;
    let store = Store::default();
    server.serve("key-value", move |request| store.handle(&request))?;
    let address = server.local_addr().ok_or("it listens")?;
    let connect = || -> Result<Client> {
        let endpoint = Endpoint::open(Config::default())?;
        Ok(endpoint.client("key-value".parse()?, vec![address]))
    };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let store = connect()?;
            Ok(thread::spawn(move || client(&store, number)))
        })
        .collect::<Result<_>>()?;
    for client in clients {
        client.join().map_err(|_| "a client panicked")??;
    }
    let store = connect()?;
    let missing = store.call(GET, Payload::short("nothing"), &CallOptions::default());
    println!(
        "a key that is not there: {}",
        missing.err().ok_or("it is there")?
    );
    let count = store.call(COUNT, Payload::new(), &CallOptions::default())?;
    println!("{} keys", String::from_utf8(count.bytes(0))?);
    if count.bytes(0) == (CLIENTS * KEYS).to_string().into_bytes() {
        Ok(())
    } else {
        Err("another number of keys was expected".into())
    }
}
