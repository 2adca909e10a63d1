//! RDMA operations between siw and us: Writes, Reads and Sends with Invalidate, asked for by either end, and what both say of a refusal.
//!
//! The guest's end is `siw-ops`, which obeys commands that we send. siw knows no atomics and no Immediate Data.

use core::sync::atomic::{AtomicU16, Ordering};
use core::time::Duration;
use std::net::SocketAddr;

use dgiwarp::{
    Access, Buffer, Config, Cq, MpaConfig, Mr, RcOperation, RcQp, RcQpAttr, RcSendWr, RecvWr, Rnic,
    Wc, WcOpcode, WcStatus,
};
use dgiwarp_conform::siw::{GUEST_IP, GuestCommand, HOST_IP, Vm};

use super::{DEPTHS, LIMIT, ended_well, fnv1a, listen, pattern};

const SOON: Duration = Duration::from_secs(60);
/// Octets of a command and of an answer.
const MESSAGE: usize = 24;
/// Octets of memory for operations.
const ROOM: u32 = 65 << 20;

const HELLO: u32 = 0;
const DIGEST: u32 = 1;
const WRITE: u32 = 2;
const READ: u32 = 3;
const SEND_INVALIDATE: u32 = 4;

/// Our end of a connection with `siw-ops`.
struct Ops {
    qp: RcQp,
    cq: Cq,
    messages: (Buffer, Mr),
    memory: (Buffer, Mr),
    guest: GuestCommand,
    /// Key and address of the guest's buffer.
    theirs: (u32, u64),
}

/// siw answers a Read of nothing with 24 octets of its own memory. Our end takes that for the violation that it is.
const LEAST_READ: u32 = 1;

/// Who connects.
#[derive(Debug, Clone, Copy)]
enum Initiator {
    We,
    Siw,
}

impl Ops {
    fn connect(vm: &Vm, mpa: &MpaConfig, initiator: Initiator) -> Self {
        // A port of its own: the listener of a command that was ended may stay for a moment.
        static PORT: AtomicU16 = AtomicU16::new(7600);
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        eprintln!("operations, initiator: {initiator:?}, {mpa:?}");
        let rnic = Rnic::open(Config::default()).unwrap();
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(64).unwrap();
        let qp = pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap();
        let register = |octets: usize| {
            let buffer = Buffer::zeroed(octets).unwrap();
            let mr = pd.register(buffer.region(), Access::all()).unwrap();
            (buffer, mr)
        };
        let messages = register(2 * MESSAGE);
        let memory = register(usize::try_from(ROOM).unwrap());
        let post_recv = |wr_id| {
            let sges = [messages.1.sge(MESSAGE..)];
            qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
        };
        let guest = match initiator {
            Initiator::We => {
                let guest = vm.spawn(&format!("siw-ops server {port}"), LIMIT * 4);
                vm.wait_listening(port).unwrap();
                post_recv(0);
                let to = SocketAddr::from((GUEST_IP, port));
                vm.in_network(|| qp.connect(to, mpa, b"")).unwrap().unwrap();
                guest.unwrap()
            }
            Initiator::Siw => {
                let listener = listen(vm, mpa, port);
                let guest = vm.spawn(&format!("siw-ops client {HOST_IP} {port}"), LIMIT * 4);
                post_recv(1);
                post_recv(0);
                let request = listener.accept(LIMIT).unwrap().expect("siw connects");
                request.accept(&qp, DEPTHS, b"").unwrap();
                // Its empty Send; the command below waits for it.
                let wc = cq.wait(SOON).unwrap().expect("siw's hello");
                assert_eq!(
                    (wc.wr_id, wc.byte_len, wc.status),
                    (1, 0, WcStatus::Success)
                );
                guest.unwrap()
            }
        };
        let mut ops = Self {
            qp,
            cq,
            messages,
            memory,
            guest,
            theirs: (0, 0),
        };
        let (answer, _) = ops.ask(HELLO, 0, 0);
        let word = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().unwrap());
        let addr = u64::from_le_bytes(answer[8..16].try_into().unwrap());
        assert_eq!(word(16), ROOM);
        ops.theirs = (word(4), addr);
        ops
    }

    fn post(&self, operation: RcOperation, range: core::ops::Range<usize>) {
        let sges = [self.memory.1.sge(range)];
        let wr = RcSendWr::new(7, operation, &sges);
        self.qp.post_send(&[wr]).unwrap();
    }

    #[track_caller]
    fn wait(&self) -> Wc {
        let Some(wc) = self.cq.wait(SOON).unwrap() else {
            panic!(
                "no completion; the connection ended with {:?}",
                self.qp.end()
            );
        };
        wc
    }

    #[track_caller]
    fn expect(&self, opcode: WcOpcode) -> Wc {
        let wc = self.wait();
        let status = (wc.opcode, wc.status);
        assert_eq!(status, (opcode, WcStatus::Success), "{:?}", self.qp.end());
        wc
    }

    /// Sends a command; its `addr` is the beginning of our memory, its key `rkey`.
    fn command(&self, operation: u32, rkey: u32, offset: u32, len: u32) {
        let (buffer, mr) = &self.messages;
        let mut octets = Vec::new();
        octets.extend(operation.to_le_bytes());
        octets.extend(rkey.to_le_bytes());
        octets.extend(self.memory.1.addr().to_le_bytes());
        octets.extend(offset.to_le_bytes());
        octets.extend(len.to_le_bytes());
        buffer.write(0, &octets);
        let sges = [mr.sge(..MESSAGE)];
        self.qp.post_send(&[RcSendWr::send(8, &sges)]).unwrap();
        self.expect(WcOpcode::Send);
    }

    fn answer(&self) -> (Vec<u8>, Wc) {
        let wc = self.expect(WcOpcode::Recv);
        assert_eq!(usize::try_from(wc.byte_len).unwrap(), MESSAGE);
        let answer = self.messages.0.to_vec(MESSAGE, MESSAGE);
        let sges = [self.messages.1.sge(MESSAGE..)];
        let again = RecvWr {
            wr_id: 0,
            sges: &sges,
        };
        self.qp.post_recv(&[again]).unwrap();
        (answer, wc)
    }

    /// A command about `len` octets at `offset` of the guest's buffer, with our key; the answer.
    fn ask(&self, operation: u32, offset: u32, len: u32) -> (Vec<u8>, Wc) {
        self.command(operation, self.memory.1.rkey(), offset, len);
        self.answer()
    }

    /// The value of such an answer.
    fn value(&self, operation: u32, offset: u32, len: u32) -> u32 {
        let (answer, _) = self.ask(operation, offset, len);
        u32::from_le_bytes(answer[20..].try_into().unwrap())
    }

    fn their_write(&self, offset: u32) -> RcOperation {
        RcOperation::Write {
            rkey: self.theirs.0,
            remote_addr: self.theirs.1 + u64::from(offset),
            immediate: None,
        }
    }

    fn their_read(&self, offset: u32) -> RcOperation {
        RcOperation::Read {
            rkey: self.theirs.0,
            remote_addr: self.theirs.1 + u64::from(offset),
        }
    }

    /// Every operation of `size` octets, each asked for by each end, contents compared.
    fn every_operation(&self, size: u32) {
        let len = usize::try_from(size).unwrap();
        let memory = &self.memory.0;
        let sent: Vec<u8> = pattern(size).iter().map(|octet| octet ^ 0x3c).collect();
        // Odd offsets, so that nothing is aligned by chance.
        memory.write(3, &sent);
        self.post(self.their_write(5), 3..3 + len);
        self.expect(WcOpcode::RdmaWrite);
        assert_eq!(
            self.value(DIGEST, 5, size),
            fnv1a(&sent),
            "our Write of {size}"
        );
        if size >= LEAST_READ {
            memory.write(3, &vec![0; len]);
            self.post(self.their_read(5), 3..3 + len);
            self.expect(WcOpcode::RdmaRead);
            assert!(memory.to_vec(3, len) == sent, "our Read of {size}");
        }

        memory.write(0, &vec![0; len]);
        self.ask(WRITE, 7, size);
        assert!(
            memory.to_vec(0, len) == pattern(size),
            "siw's Write of {size}"
        );
        memory.write(0, &sent);
        assert_eq!(
            self.value(READ, 9, size),
            fnv1a(&sent),
            "siw's Read of {size}"
        );
    }

    /// Leaves; the guest's end has to notice. Gives what it said.
    fn leave(self) -> String {
        let Self { qp, guest, .. } = self;
        qp.disconnect();
        drop(qp);
        ended_well(guest).stdout
    }
}

/// Both MULPDUs, of Writes and of Sends, and one octet to each side, at an MTU of 1,500: 1442 octets less the header.
const SIZES: [u32; 11] = [0, 1, 3, 1423, 1424, 1425, 1427, 1428, 1429, 65_537, 1 << 20];

fn transfers(vm: &Vm, mpa: &MpaConfig, initiator: Initiator, largest: u32) {
    let ops = Ops::connect(vm, mpa, initiator);
    for size in SIZES.into_iter().chain([largest]) {
        ops.every_operation(size);
    }
    assert!(ops.leave().ends_with("disconnected\n"));
}

/// Several Reads at a time, no more than agreed on, and a fenced Write behind them.
fn many_reads(vm: &Vm) {
    let ops = Ops::connect(vm, &MpaConfig::default(), Initiator::We);
    let octets = pattern(40_000);
    ops.memory.0.write(0, &octets);
    ops.post(ops.their_write(0), 0..40_000);
    ops.expect(WcOpcode::RdmaWrite);
    for read in 0..20u32 {
        let from = 50_000 + 2000 * usize::try_from(read).unwrap();
        ops.post(ops.their_read(2000 * read), from..from + 2000);
    }
    let sges = [ops.memory.1.sge(200_000..240_000)];
    let overwrite = RcSendWr {
        fence: true,
        ..RcSendWr::new(9, ops.their_write(0), &sges)
    };
    ops.qp.post_send(&[overwrite]).unwrap();
    for _ in 0..20 {
        ops.expect(WcOpcode::RdmaRead);
    }
    ops.expect(WcOpcode::RdmaWrite);
    assert!(ops.memory.0.to_vec(50_000, 40_000) == octets);
    assert_eq!(ops.value(DIGEST, 0, 40_000), fnv1a(&[0; 40_000]));
    assert!(ops.leave().ends_with("disconnected\n"));
}

/// Each end takes a key away with a Send, and the other one's next use of it ends the connection.
fn invalidations(vm: &Vm) {
    // siw invalidates ours; its Read finds nothing.
    let ops = Ops::connect(vm, &MpaConfig::default(), Initiator::We);
    let rkey = ops.memory.1.rkey();
    ops.value(READ, 0, 100);
    let (_, wc) = ops.ask(SEND_INVALIDATE, 0, 0);
    assert_eq!(wc.invalidated, Some(rkey));
    ops.command(READ, rkey, 0, 100);
    assert_eq!(ops.wait().status, WcStatus::Flushed, "the receive");
    let end = ops.qp.end().unwrap();
    assert_eq!(end.to_string(), "requested buffer: invalid STag");
    let said = ended_well(ops.guest).stdout;
    assert!(
        said.contains("failed ") && said.ends_with("disconnected\n"),
        "{said}"
    );

    // We invalidate siw's; our Read finds nothing.
    let ops = Ops::connect(vm, &MpaConfig::default(), Initiator::We);
    let invalidate = Some(ops.theirs.0);
    let (buffer, mr) = &ops.messages;
    buffer.write(0, &[0; MESSAGE]);
    let sges = [mr.sge(..MESSAGE)];
    let send = RcSendWr::new(8, RcOperation::Send { invalidate }, &sges);
    ops.qp.post_send(&[send]).unwrap();
    ops.expect(WcOpcode::Send);
    ops.answer();
    ops.post(ops.their_read(0), 0..100);
    refused_by_siw(&ops, 0x00);
}

/// A Read of ours is refused: the work request says so, and the connection ends by siw's Terminate. It gives the code that it should, but
/// DDP's layer and the type of a local error in place of RDMAP and of a protection error.
fn refused_by_siw(ops: &Ops, code: u8) {
    let wc = ops.wait();
    assert_eq!(
        (wc.opcode, wc.status),
        (WcOpcode::RdmaRead, WcStatus::RemoteOperation)
    );
    let end = ops.qp.end().unwrap().to_string();
    let told = format!("the peer terminated: layer 1, type 0, code {code:#04x}");
    assert_eq!(end, told);
    assert_eq!(ops.wait().status, WcStatus::Flushed, "the receive");
    // siw's program does not hear of it: its receive is flushed when the queue pair goes.
}

/// Keys that are none, octets that are outside, in Reads and Writes of both ends.
fn refusals(vm: &Vm) {
    let mpa = MpaConfig::default();
    // Ours of siw.
    let ops = Ops::connect(vm, &mpa, Initiator::We);
    let nowhere = RcOperation::Read {
        rkey: !ops.theirs.0,
        remote_addr: ops.theirs.1,
    };
    ops.post(nowhere, 0..100);
    refused_by_siw(&ops, 0x00);
    let ops = Ops::connect(vm, &mpa, Initiator::We);
    ops.post(ops.their_read(ROOM - 50), 0..100);
    refused_by_siw(&ops, 0x01);
    let ops = Ops::connect(vm, &mpa, Initiator::We);
    ops.post(ops.their_write(ROOM - 50), 0..100);
    ops.expect(WcOpcode::RdmaWrite);
    assert_eq!(ops.wait().status, WcStatus::Flushed, "the receive");
    let end = ops.qp.end().unwrap().to_string();
    assert_eq!(end, "the peer terminated: layer 1, type 1, code 0x01");
    ended_well(ops.guest);

    // siw's of us.
    for (operation, end) in [
        (READ, "requested buffer: invalid STag"),
        (WRITE, "tagged segment: invalid STag"),
    ] {
        let ops = Ops::connect(vm, &mpa, Initiator::We);
        ops.command(operation, !ops.memory.1.rkey(), 0, 100);
        assert_eq!(ops.wait().status, WcStatus::Flushed, "the receive");
        assert_eq!(ops.qp.end().unwrap().to_string(), end);
        let said = ended_well(ops.guest).stdout;
        assert!(said.ends_with("disconnected\n"), "{said}");
        // A Write is complete before anybody looks at it, and what comes after it may or may not be.
        assert!(operation == WRITE || said.contains("failed "), "{said}");
    }
}

pub(crate) fn all(vm: &Vm) {
    let mpa = MpaConfig::default();
    let bare = MpaConfig {
        crc: false,
        ..MpaConfig::default()
    };
    transfers(vm, &mpa, Initiator::We, 64 << 20);
    transfers(vm, &bare, Initiator::We, 100_001);
    transfers(vm, &mpa, Initiator::Siw, 100_001);
    many_reads(vm);
    invalidations(vm);
    refusals(vm);
}
