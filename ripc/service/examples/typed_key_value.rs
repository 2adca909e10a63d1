//! A key-value store as a typed service, and its clients: `cargo run --example typed_key_value -p dgiwarp-ripc-service`.
//!
//! The server and each client are endpoints of their own, as they would be on hosts of their own.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use dgiwarp_ripc_service::{Code, Config, Context, Endpoint, Handle, Status, service};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const CLIENTS: usize = 4;
const KEYS: usize = 100;

/// Values by key.
#[service(name = "typed-key-value")]
pub trait KeyValue {
    /// Puts a value; returns the one that was there.
    async fn put(
        &self,
        context: Context,
        key: String,
        value: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, Status>;
    /// The value of a key; `NOT_FOUND` where there is none.
    async fn get(&self, context: Context, key: String) -> Result<Vec<u8>, Status>;
    /// Number of keys.
    async fn count(&self, context: Context) -> Result<u64, Status>;
}

/// The lock is held for a moment only.
#[derive(Debug, Default)]
struct Store(Mutex<HashMap<String, Vec<u8>>>);

impl KeyValue for Store {
    async fn put(
        &self,
        _: Context,
        key: String,
        value: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, Status> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(values.insert(key, value))
    }

    async fn get(&self, _: Context, key: String) -> Result<Vec<u8>, Status> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let value = values.get(&key).cloned();
        value.ok_or_else(|| Status::new(Code::NotFound, format!("no key {key}")))
    }

    async fn count(&self, _: Context) -> Result<u64, Status> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(values.len() as u64)
    }
}

/// Puts its own keys, and reads them back.
async fn client(store: KeyValueClient, number: usize) -> Result<(), Failure> {
    for key in 0..KEYS {
        let (key, value) = (
            format!("{number}/{key}"),
            format!("value {key}").into_bytes(),
        );
        if store.put(key.clone(), value.clone()).await?.is_some() {
            return Err(format!("{key} was there").into());
        }
        if store.get(key.clone()).await? != value {
            return Err(format!("another value of {key}").into());
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = Endpoint::open(Config::listening("127.0.0.1:0".parse()?))?;
    Store::default().serve(&server, Handle::current())?;
    let address = server.local_addr().ok_or("it listens")?;
    let connect = || {
        let endpoint = Endpoint::open(Config::default())?;
        Ok::<_, Failure>(KeyValueClient::new(&endpoint, vec![address]))
    };
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        clients.push(tokio::spawn(client(connect()?, number)));
    }
    for client in clients {
        client.await??;
    }
    let store = connect()?;
    let missing = store.get("nothing".to_owned()).await;
    println!("{}", missing.err().ok_or("it is there")?);
    let count = store.count().await?;
    println!("{count} keys");
    if usize::try_from(count)? == CLIENTS * KEYS {
        Ok(())
    } else {
        Err("another number of keys was expected".into())
    }
}
