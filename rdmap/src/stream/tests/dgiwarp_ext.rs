//! Two dgiwarp peers: notices through their streams.

use super::*;

const ALL: Capabilities = Capabilities::WANTS_ACKNOWLEDGEMENTS.with(Capabilities::TAKES_IMMEDIATES);

/// Two ends that have greeted each other.
pub(super) fn acquainted() -> (TestStream, TestStream) {
    let mut nobody = Memory::default();
    let [mut client, mut server] = [(); 2].map(|()| stream().with_extensions(ALL));
    assert!(client.dgiwarp_ext().is_hello_due(true) && !server.dgiwarp_ext().is_hello_due(false));
    let hello = client.dgiwarp_ext_mut().hello().unwrap();
    assert_eq!(server.handle_ulpdu(&hello, &mut nobody), Ok(Handled::Taken));
    assert_eq!(server.dgiwarp_ext().peer(), Peer::Dgiwarp(ALL));
    let hello = server.dgiwarp_ext_mut().hello().unwrap();
    assert_eq!(client.handle_ulpdu(&hello, &mut nobody), Ok(Handled::Taken));
    assert_eq!(client.dgiwarp_ext().peer(), Peer::Dgiwarp(ALL));
    (client, server)
}

#[test]
fn sends_writes_and_immediates_are_counted_alike_at_both_ends() {
    let (mut client, mut server) = acquainted();
    let mut memory = Memory::with_receives(&[100, 0]);
    let mut ulpdus = send(&mut client, &[7; 20], SendKind::default(), 28);
    assert_eq!(ulpdus.len(), 2);
    let write = client.write(STag::new(STAG), TaggedOffset::new(BASE), 20);
    ulpdus.extend(segments(write, &[9; 20], 24));
    // Of a Write of nothing the STag may be anything, but not what stands for a notice.
    for name in [b"abcd", b"DGiA"] {
        let stag = STag::new(u32::from_be_bytes(*name));
        let nothing = client.write(stag, TaggedOffset::new(99), 0);
        ulpdus.extend(segments(nothing, &[], 24));
    }
    let data = crate::wire::ImmediateData {
        immediate: 1,
        written: 0,
    };
    ulpdus.push(client.immediate(data, false).to_vec());
    let mut counts = Vec::new();
    for ulpdu in &ulpdus {
        memory
            .filling
            .truncate(if counts.len() < 2 { 100 } else { 0 });
        let handled = server.handle_ulpdu(ulpdu, &mut memory);
        assert_eq!(handled, Ok(Handled::Taken));
        counts.push(server.dgiwarp_ext().pending_acks());
    }
    assert_eq!(counts, [0, 1, 1, 2, 3, 4, 5]);
    assert_eq!(client.dgiwarp_ext().sent(), 5);
    assert_eq!(client.dgiwarp_ext().acknowledged(), 0);
    let told = server.dgiwarp_ext_mut().acknowledge(None);
    assert_eq!(client.handle_ulpdu(&told, &mut memory), Ok(Handled::Taken));
    assert_eq!(client.dgiwarp_ext().acknowledged(), 5);
}

#[test]
fn a_ulpdu_that_waits_decides_about_the_peer() {
    let mut end = stream().with_extensions(ALL);
    assert_eq!(end.dgiwarp_ext().peer(), Peer::Unknown);
    end.detect_peer(&[0x41]);
    assert_eq!(end.dgiwarp_ext().peer(), Peer::Plain);
}

/// rc-extensions.md: a Write of nothing to the STag of a notice would be taken for one. All others keep their STag.
#[test]
fn only_a_write_of_nothing_to_a_notices_stag_gets_another() {
    let notice = u32::from_be_bytes(*b"DGiA");
    for (stag, octets, sent) in [
        (notice, &[][..], 0),
        (notice, &[1], notice),
        (STAG, &[], STAG),
        (STAG, &[1], STAG),
    ] {
        let length = u32::try_from(octets.len()).unwrap();
        let write = stream().write(STag::new(stag), TaggedOffset::new(BASE), length);
        let ulpdus = segments(write, octets, 24);
        assert_eq!(ulpdus[0][2..6], sent.to_be_bytes());
    }
}

#[test]
fn an_immediate_comes_with_the_send_behind_it() {
    let (mut client, mut server) = acquainted();
    let mut memory = Memory::with_receives(&[10, 10]);
    let ulpdus = send(&mut client, b"", SendKind::default(), 100);
    let notice = DgiwarpExt::immediate(5);
    assert_eq!(
        server.handle_ulpdu(&notice, &mut memory),
        Ok(Handled::Taken)
    );
    let second = send(&mut client, b"", SendKind::default(), 100);
    for ulpdu in [&ulpdus[0], &second[0]] {
        assert_eq!(server.handle_ulpdu(ulpdu, &mut memory), Ok(Handled::Taken));
    }
    let attached = |i: usize| memory.delivered[i].1.attached;
    assert_eq!((attached(0), attached(1)), (Some(5), None));
}

#[test]
fn a_message_that_waits_for_a_receive_leaves_no_trace() {
    let (mut client, mut server) = acquainted();
    let mut memory = Memory {
        waits: true,
        ..Memory::with_receives(&[])
    };
    let notice = DgiwarpExt::immediate(5);
    assert_eq!(
        server.handle_ulpdu(&notice, &mut memory),
        Ok(Handled::Taken)
    );
    let ulpdus = send(&mut client, &[1; 30], SendKind::default(), 40);
    for _ in 0..3 {
        let handled = server.handle_ulpdu(&ulpdus[0], &mut memory);
        assert_eq!(handled, Ok(Handled::ReceiverNotReady));
    }
    memory.posted.push_back(30);
    for ulpdu in &ulpdus {
        assert_eq!(server.handle_ulpdu(ulpdu, &mut memory), Ok(Handled::Taken));
    }
    assert_eq!(memory.delivered[0].0, [1; 30]);
    assert_eq!(memory.delivered[0].1.attached, Some(5));
    assert_eq!(server.dgiwarp_ext().pending_acks(), 1);
}

/// Numbers of shared receive queues stand between messages: in the middle of a Send one has no effect.
#[test]
fn a_target_selects_queues_between_messages() {
    let mut memory = Memory::with_receives(&[100]);
    let (mut client, _) = acquainted();
    let mut target = stream().with_extensions(ALL.with(Capabilities::XRC_TARGET));
    let hello = client.dgiwarp_ext_mut().hello().unwrap();
    target.handle_ulpdu(&hello, &mut memory).unwrap();
    let number = DgiwarpExt::srq_number(7);
    let select = |target: &mut TestStream, memory: &mut Memory| {
        target.handle_ulpdu(&number, memory).unwrap()
    };
    assert_eq!(select(&mut target, &mut memory), Handled::SrqSelected(7));
    let ulpdus = send(&mut client, &[1; 30], SendKind::default(), 40);
    assert_eq!(ulpdus.len(), 2);
    target.handle_ulpdu(&ulpdus[0], &mut memory).unwrap();
    assert_eq!(select(&mut target, &mut memory), Handled::Taken);
    target.handle_ulpdu(&ulpdus[1], &mut memory).unwrap();
    assert_eq!(memory.delivered[0].0, [1; 30]);
    assert_eq!(select(&mut target, &mut memory), Handled::SrqSelected(7));
    assert_eq!(
        target.dgiwarp_ext().pending_acks(),
        1,
        "notices do not count"
    );
    let (_, mut other) = acquainted();
    assert_eq!(select(&mut other, &mut memory), Handled::Taken);
}

#[test]
fn whoever_begins_with_data_is_foreign() {
    let mut memory = Memory::with_receives(&[10]);
    let mut server = stream().with_extensions(ALL);
    let mut client = stream();
    // RTR indications tell nothing.
    for ulpdu in [
        TestStream::rtr_write().to_vec(),
        client.rtr_read(0).to_vec(),
    ] {
        assert_eq!(server.handle_ulpdu(&ulpdu, &mut memory), Ok(Handled::Taken));
        assert_eq!(server.dgiwarp_ext().peer(), Peer::Unknown);
    }
    let ulpdus = send(&mut client, b"a", SendKind::default(), 100);
    let handled = server.handle_ulpdu(&ulpdus[0], &mut memory);
    assert_eq!(handled, Ok(Handled::Taken));
    assert_eq!(server.dgiwarp_ext().peer(), Peer::Plain);
}
