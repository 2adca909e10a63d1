//! Results that are equal on both transports.

use bytes::Bytes;

use super::*;

/// Result of a call as a program sees it.
fn seen(result: Result<Response<HelloReply>, Status>) -> String {
    match result {
        Ok(response) => {
            let (metadata, message, _) = response.into_parts();
            let texts: Vec<_> = metadata.get_all("a-text").iter().collect();
            let octets: Vec<_> = metadata.get_all_bin("a-bin").iter().collect();
            let octets: Vec<_> = octets.iter().map(|it| it.to_bytes().unwrap()).collect();
            let sum: u64 = message.data.iter().map(|it| u64::from(*it)).sum();
            let (text, length) = (message.text, message.data.len());
            let trailer = metadata.get("grpc-status");
            format!("{text} {length} {sum} {texts:?} {octets:?} {trailer:?}")
        }
        Err(status) => {
            let reason = status.metadata().get("reason");
            let octets = status.metadata().get_bin("reason-bin");
            let octets = octets.map(|it| it.to_bytes().unwrap());
            let (code, text, details) = (status.code(), status.message(), status.details());
            format!("{code:?} {text:?} {details:?} {reason:?} {octets:?}")
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_all_lengths_and_metadata_come_back() {
    let (http2, ripc) = on_both!(service, client, {
        let mut all = Vec::new();
        for length in [0, 1, 63, 1000, 4090, 4096, 8000, 70_000, 1 << 20, 3_000_017] {
            let mut request = hello("you");
            let data: Vec<_> = (0..length)
                .map(|at: usize| (at % 251).to_le_bytes()[0])
                .collect();
            request.get_mut().data = Bytes::from(data);
            let metadata = request.metadata_mut();
            metadata.append("a-text", "one".parse().unwrap());
            metadata.append("a-text", "two two".parse().unwrap());
            let value = MetadataValue::from_bytes(&length.to_be_bytes());
            metadata.append_bin("a-bin", value);
            all.push(seen(client.hello(request).await));
        }
        all
    });
    assert_eq!(ripc, http2);
    assert!(ripc[4].starts_with("Hello you! 4090 "), "{}", ripc[4]);
    assert!(ripc[4].ends_with("Some(\"0\")"), "{}", ripc[4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_codes_come_with_text_details_and_metadata() {
    let (http2, ripc) = on_both!(service, client, {
        let mut all = Vec::new();
        for code in 0..17 {
            all.push(seen(client.hello(hello(&format!("fail {code}"))).await));
        }
        all
    });
    assert_eq!(ripc, http2);
    assert!(
        ripc[5].starts_with("NotFound \"no: ü%\\n\" "),
        "{}",
        ripc[5]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_over_the_limit_of_tonic_are_refused_by_either_end() {
    let (http2, ripc) = on_both!(service, client, {
        let mut request = hello("you");
        request.get_mut().data = Bytes::from(vec![1; 5 << 20]);
        let by_server = client.hello(request).await.unwrap_err().code();
        let mut request = hello("you");
        request.get_mut().data = Bytes::from(vec![1; 9000]);
        let mut strict = client.clone().max_decoding_message_size(8000);
        let by_client = strict.hello(request).await.unwrap_err();
        let ended = (by_client.code(), by_client.message().to_owned());
        (by_server, ended, service.0.begun.load(Ordering::SeqCst))
    });
    assert_eq!(ripc, http2);
    assert_eq!(ripc.0, Code::OutOfRange);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_the_call_and_its_handler() {
    let ends = |code| matches!(code, Code::DeadlineExceeded | Code::Cancelled);
    let (http2, ripc) = on_both!(service, client, {
        // The deadline is not spent on the connection.
        assert!(client.hello(hello("you")).await.is_ok());
        let mut request = hello("sleep long");
        request.set_timeout(Duration::from_secs(1));
        let code = client.hello(request).await.unwrap_err().code();
        begun(&service.0.dropped, 2).await;
        code
    });
    assert!(ends(http2), "{http2:?}");
    assert_eq!(ripc, Code::DeadlineExceeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_future_drops_the_handler() {
    let (http2, ripc) = on_both!(service, client, {
        let mut other = client.clone();
        let call = tokio::spawn(async move { other.hello(hello("sleep long")).await });
        begun(&service.0.begun, 1).await;
        call.abort();
        begun(&service.0.dropped, 1).await;
        client.hello(hello("next")).await.is_ok()
    });
    assert!(ripc && http2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_fails_its_call_alone() {
    let (http2, ripc) = on_both!(service, client, {
        let mut codes = Vec::new();
        for name in ["panic now", "panic-later x"] {
            codes.push(client.hello(hello(name)).await.unwrap_err().code());
            codes.push(Code::Ok);
            assert!(client.hello(hello("you")).await.is_ok());
        }
        codes
    });
    assert_eq!(http2.len(), ripc.len());
    assert_eq!(ripc, [Code::Internal, Code::Ok, Code::Internal, Code::Ok]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_calls_wait_beside_one_that_is_slow() {
    let (http2, ripc) = on_both!(service, client, {
        let mut other = client.clone();
        let slow = tokio::spawn(async move { other.hello(hello("sleep long")).await });
        begun(&service.0.begun, 1).await;
        let calls: Vec<_> = (0..100)
            .map(|_| {
                let mut other = client.clone();
                tokio::spawn(async move { other.hello(hello("wait 200")).await.is_ok() })
            })
            .collect();
        // All are under way at a time: no thread is held by one that waits.
        begun(&service.0.begun, 101).await;
        let mut count = 0;
        for call in calls {
            count += usize::from(call.await.unwrap());
        }
        slow.abort();
        count
    });
    assert_eq!((ripc, http2), (100, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_messages_come_back() {
    let gzip = tonic::codec::CompressionEncoding::Gzip;
    let (http2, ripc) = on_both!(service, client, {
        let client = client.send_compressed(gzip).accept_compressed(gzip);
        let mut all = Vec::new();
        for length in [10, 100_000] {
            let mut request = hello("you");
            request.get_mut().data = Bytes::from(vec![3; length]);
            let reply = client.clone().hello(request).await.unwrap();
            let encoding = reply.metadata().get("grpc-encoding").cloned();
            all.push((encoding, seen(Ok(reply))));
        }
        all
    });
    assert_eq!(ripc, http2);
    assert_eq!(ripc[1].0.as_ref().unwrap(), "gzip");
}

#[tokio::test(flavor = "multi_thread")]
async fn random_metadata_and_lengths_come_back() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    let mut cases = Vec::new();
    for _ in 0..60 {
        let texts: Vec<String> = (0..random(4))
            .map(|_| {
                (0..random(600))
                    .map(|at| char::from(33 + (at * 7 % 90).to_le_bytes()[0]))
                    .collect()
            })
            .collect();
        let octets: Vec<Vec<u8>> = (0..random(4))
            .map(|_| {
                (0..random(600))
                    .map(|_| random(256).to_le_bytes()[0])
                    .collect()
            })
            .collect();
        cases.push((texts, octets, random(20_000)));
    }
    let (http2, ripc) = on_both!(service, client, {
        let mut all = Vec::new();
        for (texts, octets, length) in &cases {
            let mut request = hello("you");
            request.get_mut().data = Bytes::from(vec![5; *length]);
            let metadata = request.metadata_mut();
            for text in texts {
                metadata.append("a-text", text.parse().unwrap());
            }
            for octets in octets {
                metadata.append_bin("a-bin", MetadataValue::from_bytes(octets));
            }
            all.push(seen(client.hello(request).await));
        }
        all
    });
    assert_eq!(ripc, http2);
    assert!(ripc.iter().all(|it| it.starts_with("Hello you! ")));
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_that_is_too_long_is_refused() {
    let service = Service::default();
    let (_server, channel) = over_ripc(&service);
    let mut client = GreeterClient::new(channel);
    let mut request = hello("you");
    let value = "a".repeat(9000);
    for _ in 0..2 {
        request
            .metadata_mut()
            .append("a-text", value.parse().unwrap());
    }
    let status = client.hello(request).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let mut request = hello("you");
    request
        .metadata_mut()
        .append("a-text", value.parse().unwrap());
    let reply = client.hello(request).await.unwrap();
    assert_eq!(reply.metadata().get("a-text").unwrap().len(), 9000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_urgency_of_a_call_is_that_of_its_priority() {
    let service = Service::default();
    let (_server, channel) = over_ripc(&service);
    let mut client = GreeterClient::new(channel);
    for (priority, level) in [(None, "3"), (Some("u=0"), "0"), (Some("i, u=7"), "7")] {
        let mut request = hello("urgency of");
        if let Some(priority) = priority {
            let metadata = request.metadata_mut();
            metadata.insert("priority", priority.parse().unwrap());
        }
        let reply = client.hello(request).await.unwrap();
        assert_eq!(reply.into_inner().text, level, "{priority:?}");
    }
}
