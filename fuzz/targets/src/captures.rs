//! Input of the conformance tester from a device: unchecked frames and segments.

use dgiwarp_conform::trace::{Item, Reader, Trace};
use dgiwarp_conform::wire::datagram::{Datagram, sealed};
use dgiwarp_conform::wire::ddp::{ReadRequest, Segment, Terminate};
use dgiwarp_conform::wire::framing::Deframer;
use dgiwarp_conform::wire::startup::{HEADER, Startup};

/// Reads the octets as every PDU that the tester knows, and as a capture file. It keeps reserved bits of segments, so what it emits is what it read.
pub fn captures(data: &[u8]) {
    if let Some((header, _)) = data.split_first_chunk::<HEADER>() {
        let mut frame = Startup::parse(header);
        assert_eq!(frame.to_bytes(), header);
        frame.private_data = data.split_at(HEADER).1.to_vec();
        assert!(!frame.to_string().is_empty());
    }
    segment(data);
    datagram(data);
    datagram(&sealed(data.to_vec()));
    file(data);
    for markers in [false, true] {
        fpdus(data, markers);
    }
}

fn datagram(octets: &[u8]) {
    if let Ok(datagram) = Datagram::parse(octets) {
        assert_eq!(Datagram::parse(&datagram.to_bytes()), Ok(datagram.clone()));
        assert!(!datagram.to_string().is_empty());
    }
}

/// A capture file, as `dgiwarp-conform lint` reads it. Its packets are as many as it can have.
fn file(octets: &[u8]) {
    let Ok(mut reader) = Reader::new(octets) else {
        return;
    };
    let (mut trace, mut told) = (Trace::new(), 0);
    let mut sink = |item: &Item<'_>| {
        assert!(!format!("{item:?}").is_empty());
        told += 1;
    };
    while let Ok(Some(packet)) = reader.next_packet() {
        trace.take(&packet, &mut sink);
    }
    trace.finish(&mut sink);
    assert!(reader.packets() <= octets.len() as u64 / 16);
    assert!(told <= 8 * octets.len(), "{told} things in so few octets");
}

fn fpdus(data: &[u8], markers: bool) {
    let mut deframer = Deframer::new(markers);
    let mut rest = data;
    while let Some(fpdu) = deframer.take(rest) {
        segment(&fpdu.ulpdu);
        assert!(fpdu.octets >= fpdu.ulpdu.len() + 6);
        rest = rest
            .get(fpdu.octets..)
            .expect("an FPDU takes what was there");
    }
}

fn segment(ulpdu: &[u8]) {
    let Some(segment) = Segment::parse(ulpdu) else {
        return;
    };
    assert_eq!(segment.to_bytes(), ulpdu);
    assert!(!segment.to_string().is_empty());
    if let Some(request) = ReadRequest::parse(&segment.payload) {
        assert!(segment.payload.starts_with(&request.to_bytes()));
    }
    if let Some(terminate) = Terminate::parse(&segment.payload) {
        assert_eq!(terminate.to_bytes(), segment.payload);
        assert!(!terminate.to_string().is_empty());
    }
}
