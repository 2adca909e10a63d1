//! A generated service and its client on RIPC: `greeter serve 127.0.0.1:7000`, `greeter call 127.0.0.1:7000 NAME`; without arguments, both in one process.

#[allow(warnings, clippy::all, reason = "it is generated")]
mod generated;

use std::pin::Pin;

use dgiwarp_ripc::{Config, Endpoint};
use dgiwarp_ripc_tonic::{Channel, Server};
use generated::greeter_client::GreeterClient;
use generated::greeter_server::{Greeter, GreeterServer};
use generated::{HelloReply, HelloRequest};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

struct Service;

#[tonic::async_trait]
impl Greeter for Service {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let HelloRequest { name, data } = request.into_inner();
        let text = format!("Hello {name}!");
        Ok(Response::new(HelloReply { text, data }))
    }

    type HelloOftenStream = Replies;

    async fn hello_often(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<Self::HelloOftenStream>, Status> {
        let HelloRequest { name, .. } = request.into_inner();
        let greetings = ["Hello", "Good day to you", "Welcome"];
        let replies = greetings.map(|greeting| Ok(greet(&format!("{greeting}, {name}!"))));
        Ok(Response::new(Box::pin(tokio_stream::iter(replies))))
    }

    async fn hello_all(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<HelloReply>, Status> {
        let mut requests = request.into_inner();
        let mut names = Vec::new();
        while let Some(request) = requests.message().await? {
            names.push(request.name);
        }
        Ok(Response::new(greet(&format!(
            "Hello {}!",
            names.join(", ")
        ))))
    }

    type HelloEachStream = Replies;

    async fn hello_each(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<Self::HelloEachStream>, Status> {
        let replies = request.into_inner().map(|request| {
            let name = request?.name;
            Ok(greet(&format!("Hello {name}!")))
        });
        Ok(Response::new(Box::pin(replies)))
    }
}

type Replies = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

fn greet(text: &str) -> HelloReply {
    HelloReply {
        text: text.to_owned(),
        ..HelloReply::default()
    }
}

fn serve(address: &str) -> Result<Endpoint, Box<dyn std::error::Error>> {
    let endpoint = Endpoint::open(Config::listening(address.parse()?))?;
    let services = Server::new().add_service(GreeterServer::new(Service));
    services.serve(&endpoint, tokio::runtime::Handle::current())?;
    Ok(endpoint)
}

async fn call(address: &str, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = Endpoint::open(Config::default())?;
    let channel = Channel::new(&endpoint, vec![address.parse()?]);
    let mut client = GreeterClient::new(channel);
    let request = HelloRequest {
        name: name.to_owned(),
        ..HelloRequest::default()
    };
    let reply = client.hello(request.clone()).await?;
    println!("{}", reply.into_inner().text);
    let mut replies = client.hello_often(request.clone()).await?.into_inner();
    while let Some(reply) = replies.message().await? {
        println!("{}", reply.text);
    }
    let all = tokio_stream::iter([request.clone(), request.clone()]);
    let reply = client.hello_all(all).await?;
    println!("{}", reply.into_inner().text);
    let each = tokio_stream::iter([request.clone(), request]);
    let mut replies = client.hello_each(each).await?.into_inner();
    while let Some(reply) = replies.message().await? {
        println!("{}", reply.text);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", address] => {
            let endpoint = serve(address)?;
            println!("{:?}", endpoint.local_addr());
            std::future::pending::<()>().await;
            Ok(())
        }
        ["call", address, name] => call(address, name).await,
        [] => {
            let endpoint = serve("127.0.0.1:0")?;
            let address = endpoint.local_addr().ok_or("it does not listen")?;
            call(&address.to_string(), "world").await
        }
        _ => Err("usage: greeter [serve ADDRESS | call ADDRESS NAME]".into()),
    }
}
