//! Datagrams made after the specification, and by no code of dgiwarp.

/// CRC32c, by a table: attackers are fast.
fn crc32c(octets: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut at = 0;
        let mut entry: u32 = 0;
        while at < 256 {
            let mut crc = entry;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
                bit += 1;
            }
            table[at] = crc;
            at += 1;
            entry += 1;
        }
        table
    };
    let crc = octets.iter().fold(u32::MAX, |crc, octet| {
        let [low, ..] = (crc ^ u32::from(*octet)).to_le_bytes();
        (crc >> 8) ^ TABLE[usize::from(low)]
    });
    !crc
}

/// Appends the right CRC.
pub(crate) fn seal(datagram: &mut Vec<u8>) {
    let crc = crc32c(datagram);
    datagram.extend(crc.to_le_bytes());
}

/// Where in a message a segment is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) epoch: u32,
    pub(crate) number: u32,
    pub(crate) length: u32,
    pub(crate) offset: u32,
}

impl Place {
    fn extend(self, datagram: &mut Vec<u8>) {
        datagram.extend([0; 4]);
        for word in [self.epoch, self.number, self.length, self.offset, 0] {
            datagram.extend(word.to_be_bytes());
        }
    }

    fn is_last(self, payload: &[u8]) -> bool {
        u64::from(self.offset) + u64::try_from(payload.len()).unwrap() == u64::from(self.length)
    }
}

/// A segment of a Write-Record whose message starts at `base`.
pub(crate) fn write_record(out: &mut Vec<u8>, rkey: u32, base: u64, place: Place, payload: &[u8]) {
    out.clear();
    out.extend([if place.is_last(payload) { 0xc1 } else { 0x81 }, 0x4c]);
    out.extend(rkey.to_be_bytes());
    out.extend((base + u64::from(place.offset)).to_be_bytes());
    place.extend(out);
    out.extend(payload);
    seal(out);
}

/// A segment of a Segmented Send.
pub(crate) fn segmented_send(out: &mut Vec<u8>, qkey: u32, place: Place, payload: &[u8]) {
    out.clear();
    out.extend([if place.is_last(payload) { 0x41 } else { 0x01 }, 0x4d]);
    for word in [qkey, 0, place.number, place.offset] {
        out.extend(word.to_be_bytes());
    }
    place.extend(out);
    out.extend(payload);
    seal(out);
}

/// A Send of one datagram.
pub(crate) fn plain_send(out: &mut Vec<u8>, qkey: u32, payload: &[u8]) {
    out.clear();
    out.extend([0x41, 0x43]);
    for word in [qkey, 0, 1, 0] {
        out.extend(word.to_be_bytes());
    }
    out.extend(payload);
    seal(out);
}

/// Contents of a Read Request, and its cookie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) epoch: u32,
    pub(crate) cookie: Option<u64>,
    /// Where the octets shall go: names the request.
    pub(crate) sink: u32,
    pub(crate) size: u32,
    pub(crate) rkey: u32,
    pub(crate) remote_addr: u64,
}

/// A Read Request.
pub(crate) fn read_request(out: &mut Vec<u8>, request: Request) {
    out.clear();
    out.extend([if request.cookie.is_some() { 0x45 } else { 0x41 }, 0x41]);
    for word in [request.epoch, 1, request.sink, 0] {
        out.extend(word.to_be_bytes());
    }
    if let Some(cookie) = request.cookie {
        out.extend(cookie.to_be_bytes());
    }
    out.extend(request.sink.to_be_bytes());
    out.extend(0_u64.to_be_bytes());
    out.extend(request.size.to_be_bytes());
    out.extend(request.rkey.to_be_bytes());
    out.extend(request.remote_addr.to_be_bytes());
    seal(out);
}

/// A request for a cookie.
pub(crate) fn cookie_request(out: &mut Vec<u8>, epoch: u32, nonce: u64) {
    out.clear();
    out.extend([0x49, 1, 0, 0]);
    out.extend(epoch.to_be_bytes());
    out.extend(nonce.to_be_bytes());
    out.extend([0; 16]);
    seal(out);
}

/// The cookie of an answer to such a request.
pub(crate) fn cookie_of(answer: &[u8]) -> Option<u64> {
    let is_answer = answer.len() == 36 && answer.starts_with(&[0x49, 2]);
    let cookie = answer.get(16..24).filter(|_| is_answer)?;
    Some(u64::from_be_bytes(cookie.try_into().unwrap()))
}
