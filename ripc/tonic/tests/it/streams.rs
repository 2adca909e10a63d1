//! Calls that are not unary, and methods that are not there.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_a_stream_ends_with_unimplemented() {
    let service = Service::default();
    let (_server, channel) = over_ripc(&service);
    let mut client = GreeterClient::new(channel);
    let status = client.hello_often(hello("you")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    assert!(status.message().contains("streams"), "{status}");
    let two = [HelloRequest::default(), HelloRequest::default()];
    let status = client.hello_all(tokio_stream::iter(two)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    // One message, and no end.
    let one = tokio_stream::iter([HelloRequest::default()]);
    let open = tokio_stream::StreamExt::chain(one, tokio_stream::pending());
    let status = client.hello_all(open).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    assert!(client.hello(hello("you")).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_found_by_their_names() {
    #[derive(Clone)]
    struct Named(GreeterServer<Service>);
    impl tonic::server::NamedService for Named {
        const NAME: &'static str = "other.Greeter";
    }
    impl tower_service::Service<http::Request<tonic::body::Body>> for Named {
        type Response = http::Response<tonic::body::Body>;
        type Error = std::convert::Infallible;
        type Future = <GreeterServer<Service> as tower_service::Service<
            http::Request<tonic::body::Body>,
        >>::Future;
        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Self::Error>> {
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
            let path = request.uri().path().to_owned();
            assert!(path.starts_with("/other.Greeter/"), "{path}");
            self.0.call(request)
        }
    }
    let server = endpoint("127.0.0.1:0");
    let runtime = tokio::runtime::Handle::current();
    let named = Named(GreeterServer::new(Service::default()));
    let services = Server::new().add_service(named);
    services.clone().serve(&server, runtime.clone()).unwrap();
    assert!(services.serve(&server, runtime).is_err());
    let client = Endpoint::open(config()).unwrap();
    let channel = Channel::new(&client, vec![server.local_addr().unwrap()]);
    // Not the greeter's own name.
    let mut client = GreeterClient::new(channel);
    let status = client.hello(hello("you")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    assert!(status.message().contains("greeter.v1.Greeter"), "{status}");
}
