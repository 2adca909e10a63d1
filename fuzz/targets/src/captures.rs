//! What the conformance tester reads of a device: frames and segments that nobody has checked.

use dgiwarp_conform::wire::ddp::{ReadRequest, Segment, Terminate};
use dgiwarp_conform::wire::framing::Deframer;
use dgiwarp_conform::wire::startup::{HEADER, Startup};

/// Reads the octets as every PDU that the tester knows. It keeps reserved bits, so what it emits is what it read.
pub fn captures(data: &[u8]) {
    if let Some((header, _)) = data.split_first_chunk::<HEADER>() {
        let mut frame = Startup::parse(header);
        assert_eq!(frame.to_bytes(), header);
        frame.private_data = data.split_at(HEADER).1.to_vec();
        assert!(!frame.to_string().is_empty());
    }
    segment(data);
    for markers in [false, true] {
        fpdus(data, markers);
    }
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
