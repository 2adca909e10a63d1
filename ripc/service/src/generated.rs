//! Parts of the code that [`service`](crate::service) makes. Not for programs.

use std::net::SocketAddr;
use std::sync::Arc;

use dgiwarp_ripc::{
    CallOptions, Client, Code, Drive, Endpoint, Error, Item, LoadBalancing, Metadata, MethodId,
    Payload, Request, Status,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;

use crate::Context;
use crate::blob::{decoding, encoding};
use crate::bounds::Bounds;

/// A call that a handler is to be found for.
#[derive(Debug)]
pub struct Call(Request);

impl Call {
    /// Whether it is of this method.
    #[must_use]
    pub fn is(&self, method: MethodId) -> bool {
        self.0.method == method
    }

    /// Its context, and its arguments.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` where they are not of these types.
    pub fn arguments<A: DeserializeOwned>(self) -> Result<(Context, A), Status> {
        let deadline = self.0.deadline();
        let Request {
            caller,
            payload,
            urgency,
            ..
        } = self.0;
        let arguments = decode(payload.items).map_err(|reason| {
            let text = format!("the arguments are not those of this method here: {reason}");
            Status::new(Code::InvalidArgument, text)
        })?;
        let context = Context {
            caller,
            deadline,
            urgency,
            metadata: payload.metadata,
        };
        Ok((context, arguments))
    }

    /// The status of a method that is not there.
    #[must_use]
    pub fn unknown(&self) -> Status {
        let text = "the service has no such method here: it may be older than its caller";
        Status::new(Code::Unimplemented, text)
    }
}

/// Serves a service.
///
/// # Errors
/// As `Endpoint::serve_async`.
pub fn serve<F>(
    endpoint: &Endpoint,
    runtime: Handle,
    name: &str,
    handler: impl Fn(Call) -> F + Send + Sync + 'static,
) -> Result<(), Error>
where
    F: Future<Output = Result<Payload, Status>> + Send + 'static,
{
    endpoint.serve_async(name, runtime, move |request, _| handler(Call(request)))
}

/// The reply of a result.
///
/// # Errors
/// `INTERNAL` where the result cannot be encoded.
pub fn reply<R: Serialize>(result: &R) -> Result<Payload, Status> {
    encode(result).map_err(|reason| {
        let text = format!("the result cannot be encoded: {reason}");
        Status::new(Code::Internal, text)
    })
}

/// The client of a service.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Options of all calls.
    pub options: CallOptions,
    /// Metadata of all calls.
    pub metadata: Metadata,
    endpoint: Endpoint,
    client: Arc<Client>,
    drive: Drive,
}

impl Caller {
    /// A client of the service of this name, which the macro has checked.
    #[must_use]
    pub fn new(
        endpoint: &Endpoint,
        name: &str,
        addresses: Vec<SocketAddr>,
        policy: LoadBalancing,
    ) -> Self {
        let service = name.parse().expect("the name of a service");
        Self {
            options: CallOptions::default(),
            metadata: Metadata::new(),
            endpoint: endpoint.clone(),
            client: Arc::new(endpoint.client(service, addresses).balanced(policy)),
            drive: Drive::default(),
        }
    }

    /// Calls a method.
    ///
    /// # Errors
    /// The status of the handler or of the library. `INVALID_ARGUMENT` where the arguments cannot be encoded, `INTERNAL` where the reply is not of this type.
    pub async fn call<A: Serialize, R: DeserializeOwned>(
        &self,
        method: MethodId,
        arguments: &A,
    ) -> Result<R, Status> {
        self.drive.ensure_here(&self.endpoint);
        let mut payload = encode(arguments).map_err(|reason| {
            let text = format!("the arguments cannot be encoded: {reason}");
            Status::new(Code::InvalidArgument, text)
        })?;
        payload.metadata = self.metadata.clone();
        let reply = self.client.call_async(method, payload, &self.options);
        decode(reply.await?.items).map_err(|reason| {
            let text = format!("the result is not that of this method here: {reason}");
            Status::new(Code::Internal, text)
        })
    }
}

/// The first item has the value, and the others its blobs.
fn encode<T: Serialize>(value: &T) -> Result<Payload, postcard::Error> {
    let (octets, blobs) = encoding(|| postcard::to_stdvec(value));
    let mut payload = Payload::short(octets?);
    payload.items.extend(blobs);
    Ok(payload)
}

fn decode<T: DeserializeOwned>(items: Vec<Item>) -> Result<T, String> {
    let mut items = items.into_iter();
    let octets = items.next().ok_or("no items")?.into_vec();
    let bounds = Bounds::new(octets.len());
    let decode = || {
        let mut deserializer = postcard::Deserializer::from_bytes(&octets);
        let value = T::deserialize(bounds.of(&mut deserializer))?;
        Ok::<_, postcard::Error>((value, deserializer.finalize()?))
    };
    match decoding(items, decode) {
        (Ok((value, [])), 0) => Ok(value),
        (Ok((_, [])), left) => Err(format!("{left} blobs too many")),
        (Ok((_, rest)), _) => Err(format!("{} octets too many", rest.len())),
        (Err(reason), _) => Err(bounds
            .exceeded()
            .map_or_else(|| reason.to_string(), str::to_owned)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::bounds::{DEPTH, EMPTY};

    /// The example of the specification.
    const EXAMPLE: &[u8] = &[0x03, 0x6b, 0x65, 0x79, 0xac, 0x02, 0x01, 0x01];

    #[test]
    fn the_example_of_the_specification_is_read_and_made() {
        let document = include_str!("../../../rfc-notes/ripc.md");
        let (_, rest) = document.split_once("```typed-arguments\n").unwrap();
        let (example, _) = rest.split_once("```").unwrap();
        let digits: String = example.split_whitespace().collect();
        let octets: String = EXAMPLE.iter().map(|it| format!("{it:02x}")).collect();
        assert_eq!(digits, octets);
        let value = ("key".to_owned(), 300_u32, Some(true));
        let payload = reply(&value).unwrap();
        assert_eq!(payload.bytes(0), EXAMPLE);
        assert_eq!(
            decode::<(String, u32, Option<bool>)>(payload.items),
            Ok(value)
        );
    }

    #[test]
    fn values_of_other_types_are_refused() {
        type Value = (String, u32, Option<bool>);
        let of = |octets: &[u8]| decode::<Value>(Payload::short(octets).items);
        for end in 0..EXAMPLE.len() {
            assert!(of(&EXAMPLE[..end]).is_err(), "{end}");
        }
        let longer = [EXAMPLE, &[0]].concat();
        assert_eq!(of(&longer), Err("1 octets too many".to_owned()));
        assert!(decode::<Value>(Vec::new()).is_err());
        let two = Payload::short(EXAMPLE).and_short(EXAMPLE);
        assert_eq!(
            decode::<Value>(two.items),
            Err("1 blobs too many".to_owned())
        );
        // A length that its octets do not have takes no memory.
        assert!(decode::<Vec<u64>>(Payload::short([0xff, 0xff, 0xff, 0xff, 0x7f]).items).is_err());
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Tree {
        Leaf,
        Node(Box<Self>),
        Pair {
            left: Box<Self>,
            right: Option<Box<Self>>,
        },
    }

    /// A tree of this many nodes, each in the other.
    fn chain(nodes: usize) -> Tree {
        (0..nodes).fold(Tree::Leaf, |inner, _| Tree::Node(inner.into()))
    }

    #[test]
    fn values_nest_to_a_bound() {
        let of = |octets: Vec<u8>| decode::<Tree>(Payload::short(octets).items);
        let within = chain(DEPTH - 1);
        assert_eq!(of(postcard::to_stdvec(&within).unwrap()), Ok(within));
        let beyond = of(postcard::to_stdvec(&chain(DEPTH)).unwrap());
        assert_eq!(beyond, Err("values nest too deeply".to_owned()));
        // Nodes, and pairs in options, without an end.
        for octets in [&[1][..], &[2, 0, 1]] {
            let refused = of(octets.repeat(10_000_000));
            assert_eq!(refused, Err("values nest too deeply".to_owned()));
        }
        // Depth is that of one value, and not of those beside it.
        let many: Vec<_> = (0..1000).map(|_| chain(DEPTH - 2)).collect();
        let octets = postcard::to_stdvec(&many).unwrap();
        assert_eq!(decode(Payload::short(octets).items), Ok(many));
    }

    #[test]
    fn elements_without_octets_are_bounded() {
        const MOST: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        type Map = BTreeMap<(), Vec<[(); 2]>>;

        let refused = "too many elements without octets".to_owned();
        let items = || Payload::short(MOST).items;
        assert_eq!(decode::<Vec<()>>(items()), Err(refused.clone()));
        assert_eq!(decode::<BTreeMap<(), ()>>(items()), Err(refused.clone()));
        let nested = Payload::short([&[1], MOST].concat()).items;
        assert_eq!(decode::<Map>(nested), Err(refused.clone()));
        let of = |length: usize| {
            let value = (vec![(); length], vec![7_u8; 100_000]);
            let octets = postcard::to_stdvec(&value).unwrap();
            (decode(Payload::short(octets).items), value)
        };
        let (within, value) = of(EMPTY);
        assert_eq!(within, Ok(value));
        let many = Payload::short(postcard::to_stdvec(&vec![(); EMPTY + 10]).unwrap()).items;
        assert_eq!(decode::<Vec<()>>(many), Err(refused));
    }

    #[test]
    fn blobs_are_items() {
        use crate::Blob;

        let blobs = [vec![1, 2], Vec::new(), vec![3]].map(Blob::from);
        let payload = reply(&(7_u8, &blobs)).unwrap();
        let lengths: Vec<_> = payload.items.iter().map(Item::len).collect();
        assert_eq!(lengths, [4, 2, 0, 1]);
        let of = |octets: &[u8]| {
            let mut items = payload.items.clone();
            items[0] = Item::Short(octets.to_vec());
            decode::<(u8, [Blob; 3])>(items).map(|(_, blobs)| blobs.map(Blob::into_vec))
        };
        assert_eq!(of(&[7, 0, 1, 2]).unwrap(), [vec![1, 2], vec![], vec![3]]);
        assert_eq!(of(&[7, 2, 1, 0]).unwrap(), [vec![3], vec![], vec![1, 2]]);
        for wrong in [[7, 0, 0, 1], [7, 0, 1, 3], [7, 0, 1, 0x7f]] {
            assert!(of(&wrong).is_err(), "{wrong:?}");
        }
        assert!(decode::<u8>(payload.items.clone()).is_err());
        let [blob, ..] = blobs;
        assert!(postcard::to_stdvec(&blob).is_err());
        assert!(postcard::from_bytes::<Blob>(&[0]).is_err());
    }
}
