//! Servers that are lost and started again, and memory that is given for replies.

use bytes::Bytes;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_lost_server_fail_and_those_to_its_successor_do_not() {
    let service = Service::default();
    let (server, channel) = over_ripc(&service);
    let address = server.local_addr().unwrap();
    let mut client = GreeterClient::new(channel);
    let mut other = client.clone();
    let pending = tokio::spawn(async move { other.hello(hello("sleep long")).await });
    begun(&service.0.begun, 1).await;
    // The connections of a process that is killed end so.
    let _ = tokio::task::spawn_blocking(move || {
        server.close(Duration::ZERO);
        drop(server);
    })
    .await;
    let lost = tokio::time::timeout(SOON, pending).await.unwrap();
    let status = lost.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let status = client.hello(hello("nobody")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let again = endpoint(&address.to_string());
    let services = Server::new().add_service(GreeterServer::new(Service::default()));
    let runtime = tokio::runtime::Handle::current();
    services.serve(&again, runtime).unwrap();
    assert!(client.hello(hello("again")).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_message_goes_into_room_or_is_read() {
    let server = endpoint("127.0.0.1:0");
    let service = GreeterServer::new(Service::default()).max_decoding_message_size(64 << 20);
    let runtime = tokio::runtime::Handle::current();
    let services = Server::new().add_service(service);
    services.serve(&server, runtime).unwrap();
    let client = Endpoint::open(Config::default().without_group()).unwrap();
    let channel = Channel::new(&client, vec![server.local_addr().unwrap()]);
    let data: Vec<_> = (0..32_usize << 20)
        .map(|at| (at % 251).to_le_bytes()[0])
        .collect();
    let data = Bytes::from(data);
    for channel in [channel.clone().with_room(33 << 20), channel] {
        let client = GreeterClient::new(channel);
        let mut client = client.max_decoding_message_size(64 << 20);
        let mut request = hello("you");
        request.get_mut().data = data.clone();
        let reply = client.hello(request).await.unwrap().into_inner();
        assert!(reply.data == data);
    }
}
