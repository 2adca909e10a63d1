//! `siw-ops` in the guest, and connections with it.

use core::cell::{Cell, RefCell};
use core::ops::Range;
use core::time::Duration;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use dgiwarp::{
    Access, Buffer, Config, Cq, MpaConfig, Mr, Negotiation, NoReceive, RcEnd, RcListener,
    RcOperation, RcOptions, RcQp, RcQpAttr, RcSendWr, RecvWr, Rnic, Wc, WcOpcode, WcStatus,
};
use dgiwarp_conform::siw::{GUEST_IP, GuestCommand, HOST_IP, Vm};

use super::{DEPTHS, LIMIT};

/// Longer than anything that ends takes, with 64 MiB and an emulated processor.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// How long siw takes at most for a first answer if it looks.
const PATIENCE: Duration = Duration::from_secs(2);
/// Octets of a command.
const COMMAND: usize = 24;
/// Octets of an answer.
const ANSWER: usize = 32;
/// Octets of the guest's buffer that are there at least.
const LEAST_ROOM: u32 = 1 << 20;

pub(crate) const HELLO: u32 = 0;
pub(crate) const DIGEST: u32 = 1;
pub(crate) const WRITE: u32 = 2;
pub(crate) const READ: u32 = 3;
pub(crate) const SEND: u32 = 4;
pub(crate) const RECEIVE: u32 = 5;
pub(crate) const SEND_INVALIDATE: u32 = 6;
pub(crate) const LEAVE: u32 = 7;
pub(crate) const READ_AND_ABORT: u32 = 8;

/// Report of `siw-ops` on the receive that was posted when its connection ended.
pub(crate) const FLUSHED: &str = "receive: Work Request Flushed Error\n";

/// End that connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Initiator {
    We,
    Siw,
}

/// Our side of the VM's network.
pub(crate) fn listen(vm: &Vm, mpa: &MpaConfig, port: u16) -> RcListener {
    let address = SocketAddr::from((HOST_IP, port));
    vm.in_network(|| RcListener::bind(address, mpa.clone()))
        .unwrap()
        .unwrap()
}

/// A VM in which a `siw-ops` accepts connections.
pub(crate) struct Siw<'a> {
    pub(crate) vm: &'a Vm,
    server: RefCell<GuestCommand>,
    port: Cell<u16>,
    /// Lines of the kernel's log that were looked at.
    looked_at: Cell<usize>,
    /// How often something may still be tried once more.
    repeats: Cell<usize>,
}

/// Attempts in one VM: now and then siw ends a connection without a word; see `table::LIMITS`.
const REPEATS: usize = 3;

impl<'a> Siw<'a> {
    pub(crate) fn new(vm: &'a Vm) -> Self {
        let port = 7600;
        let siw = Self {
            vm,
            server: RefCell::new(start_server(vm, port)),
            port: Cell::new(port),
            looked_at: Cell::new(0),
            repeats: Cell::new(REPEATS),
        };
        siw.new_log();
        siw
    }

    /// Another server, in place of one whose listener is gone.
    pub(crate) fn restart(&self) {
        let port = self.port.get() + 1;
        self.port.set(port);
        self.server.replace(start_server(self.vm, port));
    }

    /// Tries something, and once more with another server if it fails.
    pub(crate) fn tried(&self, body: impl Fn()) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(&body)) else {
            return;
        };
        let Some(left) = self.repeats.get().checked_sub(1) else {
            resume_unwind(panic);
        };
        self.repeats.set(left);
        eprintln!(
            "REPEATED: siw, once more; its kernel says:\n{}",
            self.new_log()
        );
        self.restart();
        body();
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((GUEST_IP, self.port.get()))
    }

    /// Output of the server up to here.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> String {
        self.server.borrow_mut().take_until(text).unwrap()
    }

    /// Kernel log since the last call.
    pub(crate) fn new_log(&self) -> String {
        let log = self.vm.run("dmesg", LIMIT).unwrap().stdout;
        let lines: Vec<&str> = log.lines().collect();
        lines[self.looked_at.replace(lines.len())..].join("\n")
    }

    #[track_caller]
    pub(crate) fn kernel_is_well(&self) {
        let log = self.vm.run("dmesg", LIMIT).unwrap().stdout;
        for bad in ["BUG", "Oops", "WARNING: CPU", "general protection"] {
            // A guest that this machine has no time for says "BUG: soft lockup" too.
            let is_bad = |line: &str| line.contains(bad) && !line.contains("lockup");
            assert!(!log.lines().any(is_bad), "{log}");
        }
    }

    /// Sets parameters of siw, for connections to come.
    pub(crate) fn set(&self, parameters: &[(&str, u8)]) {
        let commands: Vec<String> = parameters
            .iter()
            .map(|(name, value)| format!("echo {value} >/sys/module/siw/parameters/{name}"))
            .collect();
        let output = self.vm.run(&commands.join(" && "), LIMIT).unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

fn start_server(vm: &Vm, port: u16) -> GuestCommand {
    let server = vm.spawn(&format!("siw-ops server {port}"), LIMIT * 30);
    vm.wait_listening(port).unwrap();
    server.unwrap()
}

/// Whose words tell what became of the guest's end.
enum Guest {
    Server,
    Client(GuestCommand),
}

/// Our end of a connection with `siw-ops`.
pub(crate) struct Ops<'a> {
    pub(crate) qp: RcQp,
    pub(crate) cq: Cq,
    pub(crate) negotiation: Negotiation,
    pub(crate) memory: (Buffer, Mr),
    messages: (Buffer, Mr),
    siw: &'a Siw<'a>,
    guest: Guest,
    /// Key and address of the guest's buffer.
    pub(crate) theirs: (u32, u64),
    /// Octets of it.
    pub(crate) their_room: u32,
}

/// Answer of the guest.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) value: u32,
    /// The errno of a request that siw did not take.
    pub(crate) error: u32,
    /// The key of ours that came back with it.
    pub(crate) invalidated: Option<u32>,
}

impl<'a> Ops<'a> {
    /// Connects, with so many octets of memory for operations.
    pub(crate) fn connect(
        siw: &'a Siw<'a>,
        mpa: &MpaConfig,
        initiator: Initiator,
        room: u32,
    ) -> Self {
        let rnic = Rnic::open(Config::default()).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(64).unwrap();
        // A message without a receive is refused, as everybody but us does.
        let options = RcOptions {
            no_receive: NoReceive::Terminate,
            ..RcOptions::default()
        };
        let attr = RcQpAttr {
            options: Some(options),
            ..RcQpAttr::new(&cq, &cq)
        };
        let qp = pd.create_rc_qp(&attr).unwrap();
        let register = |octets: usize| {
            let buffer = Buffer::zeroed(octets).unwrap();
            let mr = pd.register(buffer.region(), Access::all()).unwrap();
            (buffer, mr)
        };
        let messages = register(COMMAND + ANSWER);
        let memory = register(usize::try_from(room).unwrap());
        let (guest, negotiation) = match initiator {
            Initiator::We => {
                let to = siw.address();
                let connected = siw.vm.in_network(|| qp.connect(to, mpa, b""));
                let established = connected.unwrap().unwrap();
                (Guest::Server, established.negotiation)
            }
            Initiator::Siw => {
                let listener = listen(siw.vm, mpa, 0);
                let port = listener.local_addr().port();
                let command = format!("siw-ops client {HOST_IP} {port}");
                let client = siw.vm.spawn(&command, LIMIT * 4).unwrap();
                let sges = [messages.1.sge(COMMAND..)];
                qp.post_recv(&[RecvWr {
                    wr_id: 1,
                    sges: &sges,
                }])
                .unwrap();
                let request = listener.accept(LIMIT).unwrap().expect("siw connects");
                let negotiation = request.accept(&qp, DEPTHS, b"").unwrap();
                // Its empty Send.
                let wc = cq.wait(SOON).unwrap().expect("siw's hello");
                let seen = (wc.wr_id, wc.byte_len, wc.status);
                assert_eq!(seen, (1, 0, WcStatus::Success));
                (Guest::Client(client), negotiation)
            }
        };
        let mut ops = Self {
            qp,
            cq,
            negotiation,
            messages,
            memory,
            siw,
            guest,
            theirs: (0, 0),
            their_room: 0,
        };
        ops.hello();
        ops
    }

    fn hello(&mut self) {
        // Its offsets are other ones than ours.
        let room = u32::try_from(self.memory.0.len()).unwrap() + 64;
        self.command(HELLO, 0, room);
        let answer = self.first_answer();
        let word = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().unwrap());
        self.their_room = word(16);
        assert_eq!(self.their_room, room.max(LEAST_ROOM));
        let addr = u64::from_le_bytes(answer[8..16].try_into().unwrap());
        self.theirs = (word(4), addr);
    }

    /// The first answer. siw may have replied before it looks at what arrives (`table::LIMITS`); a Write of nothing wakes it.
    fn first_answer(&self) -> Vec<u8> {
        let nothing = RcSendWr {
            signaled: false,
            ..RcSendWr::new(6, self.their_write(0), &[])
        };
        let wc = loop {
            if let Some(wc) = self.cq.wait(PATIENCE).unwrap() {
                break wc;
            }
            eprintln!("siw lies asleep");
            self.qp.post_send(&[nothing]).unwrap();
        };
        self.check_answer(&wc);
        self.messages.0.to_vec(COMMAND, ANSWER)
    }

    /// Posts a work request on our memory.
    pub(crate) fn post(&self, operation: RcOperation, range: Range<usize>) {
        let sges = [self.memory.1.sge(range)];
        let wr = RcSendWr::new(7, operation, &sges);
        self.qp.post_send(&[wr]).unwrap();
    }

    #[track_caller]
    pub(crate) fn wait(&self) -> Wc {
        let Some(wc) = self.cq.wait(SOON).unwrap() else {
            panic!(
                "no completion; the connection ended with {:?}",
                self.qp.end()
            );
        };
        wc
    }

    #[track_caller]
    pub(crate) fn expect(&self, opcode: WcOpcode) -> Wc {
        let wc = self.wait();
        let status = (wc.opcode, wc.status);
        assert_eq!(status, (opcode, WcStatus::Success), "{:?}", self.qp.end());
        wc
    }

    fn post_recv(&self, range: Range<usize>) {
        let sges = [self.memory.1.sge(range)];
        self.qp
            .post_recv(&[RecvWr {
                wr_id: 2,
                sges: &sges,
            }])
            .unwrap();
    }

    /// Posts a receive for an answer.
    pub(crate) fn post_answer_receive(&self) {
        let sges = [self.messages.1.sge(COMMAND..)];
        self.qp
            .post_recv(&[RecvWr {
                wr_id: 0,
                sges: &sges,
            }])
            .unwrap();
    }

    /// Sends a command about `len` octets at `offset` of the guest's buffer, with our memory from its first octet on, and posts a receive for
    /// its answer.
    #[track_caller]
    pub(crate) fn command(&self, operation: u32, offset: u32, len: u32) {
        self.command_with_key(operation, self.memory.1.rkey(), offset, len);
    }

    #[track_caller]
    pub(crate) fn command_with_key(&self, operation: u32, rkey: u32, offset: u32, len: u32) {
        self.post_command(operation, rkey, offset, len, None);
        self.expect(WcOpcode::Send);
    }

    /// Posts a Send, with Invalidate if there is a key, and does not wait.
    pub(crate) fn post_command(
        &self,
        operation: u32,
        rkey: u32,
        offset: u32,
        len: u32,
        invalidate: Option<u32>,
    ) {
        self.post_answer_receive();
        let (buffer, mr) = &self.messages;
        let mut octets = Vec::new();
        octets.extend(operation.to_le_bytes());
        octets.extend(rkey.to_le_bytes());
        octets.extend(self.memory.1.addr().to_le_bytes());
        octets.extend(offset.to_le_bytes());
        octets.extend(len.to_le_bytes());
        buffer.write(0, &octets);
        let sges = [mr.sge(..COMMAND)];
        let send = RcSendWr::new(8, RcOperation::Send { invalidate }, &sges);
        self.qp.post_send(&[send]).unwrap();
    }

    #[track_caller]
    fn raw_answer(&self) -> (Vec<u8>, Wc) {
        let wc = self.wait();
        self.check_answer(&wc);
        (self.messages.0.to_vec(COMMAND, ANSWER), wc)
    }

    #[track_caller]
    fn check_answer(&self, wc: &Wc) {
        let seen = (wc.opcode, wc.status);
        let good = (WcOpcode::Recv, WcStatus::Success);
        assert_eq!(seen, good, "{:?}", self.qp.end());
        assert_eq!(usize::try_from(wc.byte_len).unwrap(), ANSWER);
    }

    #[track_caller]
    pub(crate) fn answer(&self) -> Answer {
        let (octets, wc) = self.raw_answer();
        let word = |at: usize| u32::from_le_bytes(octets[at..at + 4].try_into().unwrap());
        Answer {
            value: word(20),
            error: word(24),
            invalidated: wc.invalidated,
        }
    }

    /// A command and its answer.
    #[track_caller]
    pub(crate) fn ask(&self, operation: u32, offset: u32, len: u32) -> Answer {
        self.command(operation, offset, len);
        self.answer()
    }

    /// Has the guest receive what we send; gives the hash of what it got.
    #[track_caller]
    pub(crate) fn send(&self, octets: &[u8]) -> u32 {
        let len = u32::try_from(octets.len()).unwrap();
        self.ask(RECEIVE, 11, len);
        self.memory.0.write(1, octets);
        self.post_answer_receive();
        self.post(RcOperation::Send { invalidate: None }, 1..1 + octets.len());
        self.expect(WcOpcode::Send);
        self.answer().value
    }

    /// Has the guest send; gives what came.
    #[track_caller]
    pub(crate) fn receive(&self, len: u32) -> Vec<u8> {
        let octets = usize::try_from(len).unwrap();
        self.memory.0.write(0, &vec![0; octets]);
        self.post_recv(0..octets);
        self.command(SEND, 13, len);
        let wc = self.expect(WcOpcode::Recv);
        assert_eq!((wc.wr_id, wc.byte_len), (2, len));
        assert_eq!(self.answer().error, 0);
        self.memory.0.to_vec(0, octets)
    }

    pub(crate) fn their_write(&self, offset: u32) -> RcOperation {
        RcOperation::Write {
            rkey: self.theirs.0,
            remote_addr: self.theirs.1 + u64::from(offset),
            immediate: None,
        }
    }

    pub(crate) fn their_read(&self, offset: u32) -> RcOperation {
        RcOperation::Read {
            rkey: self.theirs.0,
            remote_addr: self.theirs.1 + u64::from(offset),
        }
    }

    /// Why our end is over; waits until it is.
    #[track_caller]
    pub(crate) fn end(&self) -> RcEnd {
        while self.qp.end().is_none() {
            self.cq.wait(SOON / 100).unwrap();
        }
        self.qp.end().expect("it is over")
    }

    /// Kills the guest's program; a server is started anew.
    pub(crate) fn kill_guest(&self) {
        let siw = self.siw;
        let output = siw.vm.run("kill -KILL $(pidof siw-ops)", LIMIT).unwrap();
        assert!(output.status.success(), "{output:?}");
        siw.restart();
    }

    /// Output of the guest until its end of the connection is over.
    #[track_caller]
    pub(crate) fn over(self) -> String {
        match self.guest {
            Guest::Server => self.siw.says("over\n"),
            Guest::Client(client) => {
                let output = client.wait().unwrap();
                assert!(output.status.success(), "{output:?}");
                output.stdout
            }
        }
    }

    /// Leaves; the guest's end has to notice. Gives what it said.
    #[track_caller]
    pub(crate) fn leave(self) -> String {
        self.qp.disconnect();
        let said = self.over();
        assert!(said.contains(FLUSHED), "{said}");
        said
    }
}
