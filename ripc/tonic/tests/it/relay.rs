//! Calls that go on to another server as they are, without types of their messages.

use super::*;

/// A client of a server whose calls all go on to another one.
fn relayed(service: &Service) -> ([Endpoint; 2], GreeterClient<Channel>) {
    let last = endpoint("127.0.0.1:0");
    let services = Server::new().add_service(limited(GreeterServer::new(service.clone())));
    let runtime = tokio::runtime::Handle::current;
    services.serve_as("greetings", &last, runtime()).unwrap();
    let relay = endpoint("127.0.0.1:0");
    let name = "greetings".parse().unwrap();
    let onward: Channel = relay.client(name, vec![last.local_addr().unwrap()]).into();
    let services = Server::new().with_fallback(onward);
    services.serve(&relay, runtime()).unwrap();
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let channel = Channel::new(&client, vec![relay.local_addr().unwrap()]);
    ([last, relay], GreeterClient::new(channel))
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_streams_of_unknown_types_go_on_as_they_are() {
    let service = Service::default();
    let (_servers, mut client) = relayed(&service);
    for length in [0, 100, 100_000] {
        let mut request = hello("you");
        request.get_mut().data = pattern(1, length);
        request
            .metadata_mut()
            .insert("a-text", "there".parse().unwrap());
        let response = client.hello(request).await.unwrap();
        assert_eq!(response.metadata().get("a-text").unwrap(), "there");
        assert_eq!(response.into_inner().data, pattern(1, length));
    }
    let status = client.hello(hello("fail 8")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "no: ü%\n");
    assert_eq!(status.metadata().get("reason").unwrap(), "on-purpose");
    let requests = tokio_stream::iter(0..300).map(|at| HelloRequest {
        name: at.to_string(),
        data: pattern(at, 2000),
    });
    let response = client.hello_each(requests).await.unwrap();
    let mut replies = response.into_inner();
    for at in 0..300 {
        let reply = replies.message().await.unwrap().unwrap();
        assert_eq!(
            (reply.text, reply.data),
            (at.to_string(), pattern(at, 2000))
        );
    }
    assert!(replies.message().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cancelled_ends_at_the_last_server() {
    let service = Service::default();
    let (servers, mut client) = relayed(&service);
    let mut request = hello("hang-behind 3 10");
    request.set_timeout(SOON);
    let mut replies = client.hello_often(request).await.unwrap().into_inner();
    for _ in 0..3 {
        replies.message().await.unwrap().unwrap();
    }
    drop(replies);
    begun(&service.0.dropped, 1).await;
    // A service of that name carries no other calls.
    let name = "nothing".parse().unwrap();
    let channel: Channel = servers[1]
        .client(name, vec![servers[0].local_addr().unwrap()])
        .into();
    let status = GreeterClient::new(channel).hello(hello("you")).await;
    assert_eq!(status.unwrap_err().code(), Code::Unimplemented);
}
