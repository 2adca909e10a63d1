//! A device of RFC 5044 alone, as they were before RFC 6581: it closes upon any Request that is not of revision 1.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use dgiwarp_conform::wire::ddp::{ReadRequest, Segment, Terminate, opcode};
use dgiwarp_conform::wire::framing::{Deframer, Framer};
use dgiwarp_conform::wire::startup::{C, HEADER, M, MOST_PRIVATE_DATA, REPLY, REQUEST, Startup};

/// It ends with the test's process.
pub(crate) struct OldDevice {
    address: SocketAddr,
}

impl OldDevice {
    pub(crate) fn new() -> Self {
        Self::with(false)
    }

    /// One that does not look at keys.
    pub(crate) fn faulty() -> Self {
        Self::with(true)
    }

    fn with(any_key: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // The tester leaves in every state.
                thread::spawn(move || serve(&stream, any_key));
            }
        });
        Self { address }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }
}

/// Serves a connection to its end.
fn serve(stream: &TcpStream, any_key: bool) -> Option<()> {
    let done = connection(stream, any_key);
    stream.shutdown(Shutdown::Write).ok()?;
    // Unread octets would make a reset of it.
    let mut rest = [0; 4096];
    while (&*stream).read(&mut rest).ok()? > 0 {}
    done
}

fn connection(mut stream: &TcpStream, any_key: bool) -> Option<()> {
    let mut header = [0; HEADER];
    for at in 0..HEADER {
        stream.read_exact(&mut header[at..=at]).ok()?;
        if !any_key && at < REQUEST.len() && header[at] != REQUEST[at] {
            return None;
        }
    }
    let request = Startup::parse(&header);
    let length = usize::from(request.pd_length);
    if request.revision != 1 || length > MOST_PRIVATE_DATA {
        return None;
    }
    stream.read_exact(&mut vec![0; length]).ok()?;
    let crc = request.has(C);
    let reply = Startup::new(REPLY, request.flags & C, 1, &[]);
    stream.write_all(&reply.to_bytes()).ok()?;
    let mut framer = Framer::new(crc, request.has(M));
    let mut deframer = Deframer::new(false);
    let mut buffer = Vec::new();
    let mut sends = 1;
    let mut reads = 1;
    loop {
        while let Some(fpdu) = deframer.take(&buffer) {
            buffer.drain(..fpdu.octets);
            let mut refuse = |layer, etype, code| {
                let terminate = Terminate {
                    layer,
                    etype,
                    code,
                    header_control: 0,
                    reserved: 0,
                    rest: Vec::new(),
                };
                let segment = Segment::untagged(opcode::TERMINATE, 2, 1, &terminate.to_bytes());
                stream.write_all(&framer.fpdu(&segment.to_bytes())).ok()
            };
            if crc && !fpdu.crc_is_right {
                refuse(2, 0, 2);
                return None;
            }
            let Some(segment) = Segment::parse(&fpdu.ulpdu) else {
                refuse(1, 0, 0);
                return None;
            };
            match segment.opcode() {
                opcode::WRITE if segment.payload.is_empty() => {}
                opcode::SEND if is_next(&segment, 0, &mut sends) => {}
                opcode::READ_REQUEST if is_next(&segment, 1, &mut reads) => {
                    let Some(read) = ReadRequest::parse(&segment.payload).filter(|it| it.size == 0)
                    else {
                        refuse(0, 1, 0);
                        return None;
                    };
                    let response =
                        Segment::tagged(opcode::READ_RESPONSE, read.sink_stag, read.sink_to, &[]);
                    stream.write_all(&framer.fpdu(&response.to_bytes())).ok()?;
                }
                opcode::WRITE => {
                    refuse(1, 1, 0);
                    return None;
                }
                _ => {
                    refuse(0, 2, 6);
                    return None;
                }
            }
        }
        let mut more = [0; 4096];
        let got = stream.read(&mut more).ok().filter(|got| *got > 0)?;
        buffer.extend(&more[..got]);
    }
}

/// Whether a segment is the next whole message of a queue.
fn is_next(segment: &Segment, queue: u32, next: &mut u32) -> bool {
    use dgiwarp_conform::wire::ddp::Place;
    let fits = matches!(segment.place, Place::Untagged { qn, msn, mo: 0, .. } if (qn, msn) == (queue, *next));
    *next += u32::from(fits && segment.is_last());
    fits
}
