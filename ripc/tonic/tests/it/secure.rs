//! Keys and tokens of the endpoints below a channel and a server.

use dgiwarp_ripc::{Permission, PrivateKey, Security, ServiceName, TokenSecret};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_brings_the_keys_and_tokens_of_its_endpoint() {
    let (key, secret) = (
        PrivateKey::generate().unwrap(),
        TokenSecret::generate().unwrap(),
    );
    let public = key.public();
    let service = Service::default();
    let mut config = Config::listening("127.0.0.1:0".parse().unwrap()).without_group();
    config.token_secret = Some(secret.clone());
    let server = Endpoint::open(config.secured(Security::new(key))).unwrap();
    Server::new()
        .add_service(GreeterServer::new(service.clone()))
        .serve(&server, tokio::runtime::Handle::current())
        .unwrap();
    let grpc: ServiceName = "grpc".parse().unwrap();
    let token = secret.issue(&Permission::new(grpc.id)).unwrap();
    let mine = || Security::anonymous().unwrap();
    let stranger = PrivateKey::generate().unwrap().public();
    for (security, tokens, code) in [
        (
            Some(mine().with_peer(public)),
            vec![token.clone()],
            Code::Ok,
        ),
        (
            Some(mine().with_peer(public).sealed()),
            vec![token.clone()],
            Code::Ok,
        ),
        (
            Some(mine().with_peer(public)),
            vec![],
            Code::Unauthenticated,
        ),
        (
            Some(mine().with_peer(stranger)),
            vec![token.clone()],
            Code::Unauthenticated,
        ),
        (None, vec![token], Code::Unauthenticated),
    ] {
        let mut config = Config::default().without_group();
        config.security = security;
        config.tokens = tokens;
        let endpoint = Endpoint::open(config).unwrap();
        let channel = Channel::new(&endpoint, vec![server.local_addr().unwrap()]);
        let mut client = GreeterClient::new(channel);
        let before = service.0.begun.load(Ordering::SeqCst);
        let reply = client.hello(hello("you")).await;
        let got = reply.as_ref().map_or_else(Status::code, |_| Code::Ok);
        assert_eq!(got, code, "{reply:?}");
        let stream = client.hello_often(hello("count 5 3000")).await;
        if code == Code::Ok {
            let replies = stream.unwrap().into_inner().collect::<Vec<_>>().await;
            assert_eq!(replies.len(), 5);
            assert!(replies.iter().all(Result::is_ok));
        } else {
            let ended = match stream {
                Ok(stream) => stream.into_inner().message().await.unwrap_err(),
                Err(status) => status,
            };
            assert_eq!(ended.code(), code);
        }
        let begun = service.0.begun.load(Ordering::SeqCst) - before;
        assert_eq!(begun, if code == Code::Ok { 2 } else { 0 });
    }
}
