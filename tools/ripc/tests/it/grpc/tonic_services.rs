//! Services and clients of tonic that use RIPC themselves, and grpcio at the other side.

use std::pin::Pin;

use dgiwarp_ripc::{Config, Endpoint};
use dgiwarp_ripc_tonic::{Channel, Server};
use tokio_stream::{Stream, StreamExt as _};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};

use super::{gateway, program, python, run, serve};

#[path = "../../../../../ripc/tonic/examples/greeter/generated.rs"]
#[allow(warnings, clippy::all, reason = "it is generated")]
mod generated;

// Types of the generated code.
use {prost as _, tonic_prost as _};

use generated::greeter_client::GreeterClient;
use generated::greeter_server::{Greeter, GreeterServer};
use generated::{HelloReply, HelloRequest};

struct Service;

type Replies = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

fn reply(text: impl Into<String>) -> HelloReply {
    let text = text.into();
    let data = Default::default();
    HelloReply { text, data }
}

#[tonic::async_trait]
impl Greeter for Service {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let name = &request.get_ref().name;
        if name == "fail" {
            let mut with = MetadataMap::new();
            with.insert("reason", "on-purpose".parse().unwrap());
            with.insert_bin("reason-bin", MetadataValue::from_bytes(&[0, 255, 10]));
            return Err(Status::with_metadata(Code::DataLoss, "no: ü%\n", with));
        }
        if name == "hold" {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(reply(format!("Hello {name}!"))))
    }

    type HelloOftenStream = Replies;

    async fn hello_often(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<Replies>, Status> {
        let count: u8 = request.get_ref().name.parse().unwrap();
        let replies = tokio_stream::iter(0..count).map(|at| Ok(reply(at.to_string())));
        Ok(Response::new(Box::pin(replies)))
    }

    async fn hello_all(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<HelloReply>, Status> {
        let names = request.into_inner().map(|it| it.map(|it| it.name));
        let names: Result<Vec<_>, _> = names.collect().await;
        Ok(Response::new(reply(names?.concat())))
    }

    type HelloEachStream = Replies;

    async fn hello_each(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<Replies>, Status> {
        let replies = request.into_inner().map(|it| it.map(|it| reply(it.name)));
        Ok(Response::new(Box::pin(replies)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpcio_calls_a_service_of_tonic() {
    let config = Config::listening("127.0.0.1:0".parse().unwrap());
    let endpoint = Endpoint::open(config.without_group()).unwrap();
    let services = Server::new().add_service(GreeterServer::new(Service));
    let runtime = tokio::runtime::Handle::current();
    services.serve(&endpoint, runtime).unwrap();
    let address = endpoint.local_addr().unwrap().to_string();
    if python("client.py").is_none() {
        return;
    }
    let called = tokio::task::spawn_blocking(move || {
        let gateway = gateway("127.0.0.1:0", &["--at", &address]);
        run(&gateway.address, &["greeter"]);
    });
    called.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_tonic_calls_grpcio() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else {
        return;
    };
    let service = serve(&program.address, &[]);
    let endpoint = Endpoint::open(Config::default().without_group()).unwrap();
    let channel = Channel::new(&endpoint, vec![service.address.parse().unwrap()]);
    let channels = [channel.clone(), channel.with_room(6 << 20)];
    for channel in channels {
        let mut client = GreeterClient::new(channel).max_decoding_message_size(8 << 20);
        for length in [0, 10, 100_000, 5_000_000] {
            let request = HelloRequest {
                name: "you".to_owned(),
                data: vec![7; length].into(),
            };
            let reply = client.hello(request.clone()).await.unwrap().into_inner();
            assert_eq!((reply.text, reply.data), (request.name, request.data));
        }
        let requests = tokio_stream::iter((0..100).map(|at: u8| HelloRequest {
            name: at.to_string(),
            data: vec![at; 5000].into(),
        }));
        let mut replies = client.hello_each(requests).await.unwrap().into_inner();
        for at in 0..100 {
            let reply = replies.message().await.unwrap().unwrap();
            assert_eq!(
                (reply.text, reply.data),
                (at.to_string(), vec![at; 5000].into())
            );
        }
        assert!(replies.message().await.unwrap().is_none());
        let all = client.hello_all(tokio_stream::empty()).await;
        assert_eq!(all.unwrap_err().code(), Code::Unimplemented);
    }
}
