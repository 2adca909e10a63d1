//! A peer without a stack: octets on a TCP socket, cut into system calls as a case wants it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::clock;
use crate::oracle::{Came, Reaction};
use crate::recording::{Recorder, Tape, Way};
use crate::wire::ddp::{ReadRequest, Segment, opcode};
use crate::wire::framing::{Deframer, Fpdu, Framer, Wrong};
use crate::wire::startup::{self, Startup};

/// How long the tester waits for a device.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For an answer that has to come.
    pub answer: Duration,
    /// For something that must not come, and before the tester asks again.
    pub quiet: Duration,
    /// How long the first FPDU may be without an answer until another follows, which some devices wait for.
    pub nudge: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(5),
            quiet: Duration::from_millis(250),
            nudge: Duration::from_millis(250),
        }
    }
}

/// The STag of the Reads of nothing that ask whether a connection goes on.
const ECHO_STAG: u32 = 0xec40_0000;

/// Octets that are read of a connection that a case is done with.
const MOST_LATE: usize = 1 << 20;

/// One TCP connection with the device.
#[derive(Debug)]
pub struct Peer {
    stream: TcpStream,
    unread: Vec<u8>,
    tape: Tape,
    patience: Patience,
    /// Makes FPDUs; before startup is over, of no use.
    pub framer: Framer,
    deframer: Deframer,
    /// Whether CRCs are in use.
    crc: bool,
    /// STag and TO of an octet of the device, for questions to a device that refuses Reads of nothing.
    pub echo: Option<(u32, u64)>,
    /// The number of the next Message to queue 0.
    pub send_msn: u32,
    /// The number of the next Message to queue 1.
    pub read_msn: u32,
    /// The device's startup frame.
    pub theirs: Option<Startup>,
    /// How many FPDUs it took until the device answered the first.
    pub nudges: u32,
    /// Whether the device's half has ended.
    ended: bool,
    /// Whether the device has sent a Terminate, and that the end was waited for since.
    terminated: bool,
    waited: bool,
}

impl Peer {
    /// Connects TCP.
    ///
    /// # Errors
    /// The operating system's.
    pub fn connect(to: SocketAddr, recorder: &Recorder, patience: Patience) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&to, patience.answer)?;
        Self::on(stream, true, recorder, patience)
    }

    /// A peer on a TCP connection.
    ///
    /// # Errors
    /// The operating system's.
    pub fn on(
        stream: TcpStream,
        we_connected: bool,
        recorder: &Recorder,
        patience: Patience,
    ) -> io::Result<Self> {
        // Every write becomes a TCP segment of its own, as long as the device's window is open.
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(patience.answer))?;
        let tape = recorder.begin(stream.local_addr()?, stream.peer_addr()?, we_connected);
        Ok(Self {
            stream,
            unread: Vec::new(),
            tape,
            patience,
            framer: Framer::new(true, false),
            deframer: Deframer::new(false),
            crc: true,
            echo: None,
            send_msn: 1,
            read_msn: 1,
            theirs: None,
            nudges: 0,
            ended: false,
            terminated: false,
            waited: false,
        })
    }

    /// Recording of this connection.
    #[must_use]
    pub fn tape(&self) -> Tape {
        self.tape.clone()
    }

    /// Sends octets with one system call. Reading shows whether the device has gone.
    pub fn send(&mut self, octets: &[u8]) {
        self.tape.keep(Way::Sent, octets);
        // Reading reports the end of the connection.
        let _ = self.stream.write_all(octets);
    }

    /// Sends octets in pieces that end at these places.
    pub fn send_cut(&mut self, octets: &[u8], cuts: &[usize]) {
        let mut from = 0;
        for cut in cuts.iter().copied().chain([octets.len()]) {
            let to = cut.min(octets.len());
            if to > from {
                self.send(&octets[from..to]);
                from = to;
            }
        }
    }

    /// Sends a segment as an FPDU.
    pub fn segment(&mut self, segment: &Segment) {
        let octets = self.framer.fpdu(&segment.to_bytes());
        self.send(&octets);
    }

    /// Sends a ULPDU as an FPDU with something wrong.
    pub fn wrong(&mut self, ulpdu: &[u8], wrong: Wrong) {
        let octets = self.framer.wrong_fpdu(ulpdu, wrong);
        self.send(&octets);
    }

    /// Sends a Send.
    pub fn send_message(&mut self, payload: &[u8]) {
        let segment = Segment::untagged(opcode::SEND, 0, self.send_msn, payload);
        self.send_msn = self.send_msn.wrapping_add(1);
        self.segment(&segment);
    }

    /// Sends a Read Request.
    pub fn read_request(&mut self, request: ReadRequest) {
        let segment =
            Segment::untagged(opcode::READ_REQUEST, 1, self.read_msn, &request.to_bytes());
        self.read_msn = self.read_msn.wrapping_add(1);
        self.segment(&segment);
    }

    /// Ends our half of the stream.
    pub fn finish(&mut self) {
        self.tape.keep(Way::Sent, &[]);
        // A connection that is gone already is finished too.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Resets the connection.
    pub fn reset(mut self) {
        self.ended = true;
        // If the option cannot be set the device sees an end, which the case cannot tell apart either.
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    /// The longest segment that TCP sends here, in octets, options left out. The device's is the same on most paths.
    /// Within one host each end has its own, which changes with the window: there is none.
    #[must_use]
    pub fn segment_size(&self) -> Option<u16> {
        let ends = (self.stream.local_addr(), self.stream.peer_addr());
        if let (Ok(ours), Ok(theirs)) = ends
            && ours.ip() == theirs.ip()
        {
            return None;
        }
        let size = SockRef::from(&self.stream).tcp_mss().ok()?;
        u16::try_from(size).ok()
    }

    /// Octets with the receive buffer this large, so that the device meets a small window.
    pub fn small_window(&self, octets: usize) {
        // The system takes the nearest size that it can do.
        let _ = SockRef::from(&self.stream).set_recv_buffer_size(octets);
    }

    /// Reads the startup frame of the device.
    pub fn startup(&mut self) -> Came {
        let until = clock::now() + self.patience.answer;
        self.startup_until(until)
    }

    fn startup_until(&mut self, until: Instant) -> Came {
        loop {
            if let Some(header) = self.unread.first_chunk::<{ startup::HEADER }>() {
                let mut frame = Startup::parse(header);
                let all = startup::HEADER + usize::from(frame.pd_length);
                if self.unread.len() >= all {
                    frame.private_data = self.unread[startup::HEADER..all].to_vec();
                    self.unread.drain(..all);
                    self.theirs = Some(frame.clone());
                    return Came::Startup(frame);
                }
            }
            if let Some(over) = self.more(until) {
                return over;
            }
        }
    }

    /// Sends a startup frame and takes what comes of it.
    pub fn ask(&mut self, frame: &Startup) -> Reaction {
        self.send(&frame.to_bytes());
        self.answer_to_startup()
    }

    /// Reaction to a startup frame.
    pub fn answer_to_startup(&mut self) -> Reaction {
        let came = self.startup();
        Reaction {
            came: vec![came],
            lives: false,
        }
    }

    /// Begins to send and expect FPDUs, as two startup frames say.
    pub fn full_operation(&mut self, ours: &Startup, theirs: &Startup) {
        self.crc = (ours.flags | theirs.flags) & startup::C != 0;
        // FPDUs have right CRCs even if neither end asks for them: a device that checks them all the same fails the cases about that, and no others.
        self.framer = Framer::new(true, theirs.has(startup::M));
        self.deframer = Deframer::new(ours.has(startup::M));
    }

    /// Whether the CRC of an FPDU is right, or not in use.
    #[must_use]
    pub fn crc_fits(&self, fpdu: &Fpdu) -> bool {
        fpdu.crc_is_right || !self.crc
    }

    /// The next FPDU, or what there is instead.
    pub fn next_fpdu(&mut self) -> Came {
        let terminated = self.terminated;
        let came = self.next_within(self.patience.answer);
        self.waited |= terminated && matches!(came, Came::Nothing);
        came
    }

    /// The next input within a time.
    pub fn next_within(&mut self, time: Duration) -> Came {
        let until = clock::now() + time;
        loop {
            if let Some(fpdu) = self.deframer.take(&self.unread) {
                self.unread.drain(..fpdu.octets);
                return match Segment::parse(&fpdu.ulpdu) {
                    Some(segment) => {
                        self.terminated |= segment.opcode() == opcode::TERMINATE;
                        Came::Segment(segment, fpdu)
                    }
                    None => Came::Short(fpdu),
                };
            }
            if let Some(over) = self.more(until) {
                return over;
            }
        }
    }

    /// The next segment that is no Write of nothing; those every peer must ignore.
    pub fn next_segment(&mut self) -> Came {
        loop {
            match self.next_fpdu() {
                Came::Segment(segment, _) if segment.is_empty_write() => {}
                came => return came,
            }
        }
    }

    /// Reads more octets; what it is if none come.
    fn more(&mut self, until: Instant) -> Option<Came> {
        let left = until.saturating_duration_since(clock::now());
        let mut octets = [0; 65536];
        // A timeout of zero would mean none.
        let wait = left.max(Duration::from_millis(1));
        let read = match self.stream.set_read_timeout(Some(wait)) {
            Ok(()) => self.stream.read(&mut octets),
            Err(error) => Err(error),
        };
        let over = match read {
            Ok(0) => {
                self.ended = true;
                self.tape.keep(Way::Received, &[]);
                Came::End
            }
            Ok(count) => {
                self.tape.keep(Way::Received, &octets[..count]);
                self.unread.extend(&octets[..count]);
                return None;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => return None,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if left > Duration::ZERO {
                    return None;
                }
                Came::Nothing
            }
            Err(_) => {
                self.ended = true;
                Came::Reset
            }
        };
        if self.unread.is_empty() {
            Some(over)
        } else {
            Some(Came::Torn(std::mem::take(&mut self.unread)))
        }
    }

    /// Asks whether the connection goes on, with an RDMA Read of nothing: neither of its STags may be looked at
    /// (RFC 5040 §5.2.2). Says whether the answer came; what else came is added to `came`.
    pub fn echo(&mut self, came: &mut Vec<Came>) -> bool {
        let number = self.read_msn;
        self.ask_echo();
        self.await_echo(number, came)
    }

    /// Sends the question of [`echo`](Self::echo).
    pub fn ask_echo(&mut self) {
        let (_, octets) = self.question();
        self.send(&octets);
    }

    /// The question of [`echo`](Self::echo), for the tester to send: its number, and its FPDU.
    pub fn question(&mut self) -> (u32, Vec<u8>) {
        let number = self.read_msn;
        self.read_msn = number.wrapping_add(1);
        if self.echo.is_none() {
            self.tape.asks_nothing();
        }
        let (source_stag, source_to) = self.echo.unwrap_or_default();
        let request = ReadRequest {
            sink_stag: ECHO_STAG | number & 0xffff,
            sink_to: u64::from(number),
            size: u32::from(self.echo.is_some()),
            source_stag,
            source_to,
        };
        let segment = Segment::untagged(opcode::READ_REQUEST, 1, number, &request.to_bytes());
        (number, self.framer.fpdu(&segment.to_bytes()))
    }

    /// Waits for the answer to the question that had this number.
    pub fn await_echo(&mut self, number: u32, came: &mut Vec<Came>) -> bool {
        loop {
            let one = self.next_segment();
            if is_echo(&one, number) {
                return true;
            }
            let over = !matches!(one, Came::Segment(..) | Came::Short(_));
            let nothing = matches!(one, Came::Nothing);
            if !nothing || came.is_empty() {
                came.push(one);
            }
            if over {
                return false;
            }
        }
    }

    /// An echo of the first FPDU of a connection. A device that answers only once more arrives is nudged with Writes of
    /// nothing, and how often is kept.
    pub fn first_echo(&mut self, came: &mut Vec<Came>) -> bool {
        let number = self.read_msn;
        let until = clock::now() + self.patience.answer;
        self.ask_echo();
        loop {
            let one = self.next_within(self.patience.nudge);
            match one {
                Came::Nothing if clock::now() < until => {
                    self.nudges += 1;
                    self.segment(&Segment::tagged(opcode::WRITE, 0, 0, &[]));
                }
                one if is_echo(&one, number) => return true,
                Came::Segment(segment, _) if segment.is_empty_write() => {}
                one => {
                    let over = !matches!(one, Came::Segment(..) | Came::Short(_));
                    came.push(one);
                    if over {
                        return false;
                    }
                }
            }
        }
    }

    /// Reaction of a device to the latest octets: all that comes until the connection ends or a question shows that it goes
    /// on.
    pub fn reaction(&mut self) -> Reaction {
        let mut reaction = Reaction::default();
        loop {
            match self.next_within(self.patience.quiet) {
                Came::Segment(segment, _) if segment.is_empty_write() => {}
                Came::Nothing => break,
                one => {
                    let over = !matches!(one, Came::Segment(..) | Came::Short(_));
                    reaction.came.push(one);
                    if over {
                        return reaction;
                    }
                    if reaction.terminate().is_some() {
                        // It says its last; now TCP has to end.
                        let end = self.next_segment();
                        reaction.came.push(end);
                        return reaction;
                    }
                }
            }
        }
        reaction.lives = self.echo(&mut reaction.came);
        if !reaction.lives && !reaction.ended() && reaction.terminate().is_some() {
            let end = self.next_segment();
            reaction.came.push(end);
        }
        reaction
    }

    /// Immediate reaction of a device to the latest octets; no question follows whether the connection goes on.
    pub fn at_once(&mut self) -> Reaction {
        let mut reaction = Reaction::default();
        loop {
            let came = self.quiet();
            let over = !matches!(came, Came::Segment(..) | Came::Short(_));
            reaction.came.push(came);
            if over {
                return reaction;
            }
        }
    }

    /// The next segment that is no Write of nothing, however long an answer takes, and those that come within a moment behind it. More may come later.
    pub fn burst(&mut self) -> Vec<Segment> {
        let mut all = Vec::new();
        let mut came = self.next_segment();
        while let Came::Segment(segment, _) = came {
            if !segment.is_empty_write() {
                all.push(segment);
            }
            came = self.quiet();
        }
        all
    }

    /// Input within a moment in which none has to come.
    pub fn quiet(&mut self) -> Came {
        self.next_within(self.patience.quiet)
    }
}

impl Drop for Peer {
    /// Octets that the device has sent by now belong to the recording too, and behind a Terminate it has to end the connection.
    fn drop(&mut self) {
        let wait = if self.terminated && !self.waited {
            self.patience.answer
        } else {
            Duration::ZERO
        };
        let until = clock::now() + wait;
        let mut octets = 0;
        while !self.ended && octets < MOST_LATE {
            let before = self.unread.len();
            match self.more(until) {
                None => octets += self.unread.len() - before,
                Some(Came::Torn(torn)) => {
                    self.unread = torn;
                    break;
                }
                Some(_) => break,
            }
        }
        if self.terminated && !self.ended {
            self.tape.left_open(self.patience.answer);
        }
    }
}

/// Whether it answers the question. Octets in it are another case's affair.
fn is_echo(came: &Came, number: u32) -> bool {
    use crate::wire::ddp::Place;
    let place = Place::Tagged {
        stag: ECHO_STAG | number & 0xffff,
        to: u64::from(number),
    };
    matches!(came, Came::Segment(segment, _)
        if segment.opcode() == opcode::READ_RESPONSE && segment.place == place)
}
