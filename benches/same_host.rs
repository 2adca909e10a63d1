//! Instructions of short messages between connected queue pairs of one host, as valgrind counts them: `cargo bench -p dgiwarp-benches --bench same_host`.
//!
//! Both ends are in one process and polled by one thread. A row is the same in each run, to a few instructions, but where polls wait for the background thread,
//! as they do under valgrind now and then: it is thousands of times larger then, and says nothing.

use std::env;
use std::io;
use std::net::Ipv4Addr;
use std::process::Command;
use std::thread;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, Cq, MpaConfig, Mr, RcListener, RcOperation, RcQp, RcQpAttr, RcSendWr,
    ReadDepths, RecvWr, Rnic, SameHostMode, Wc, WcOpcode, WcStatus,
};

const LENGTH: usize = 64;
const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };
const SEND: RcOperation = RcOperation::Send { invalidate: None };
const SOON: Duration = Duration::from_secs(60);
/// Messages that ends exchange before they have met, and polls of which one finds a completion, at most.
const TO_MEET: usize = 2000;
const POLLS: usize = 10_000_000;
/// Messages before those that are counted, and these.
const WARM: usize = 2000;
const COUNTED: usize = 2000;
/// Work requests of a list.
const LIST: usize = 16;

/// Calls of which the instructions are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Post,
    PostRecv,
    PollRecv,
    PollSend,
    PollEmpty,
    PostList,
    PollRecvs,
    PollSends,
}

/// Name of each row, and its part.
const ROWS: [(&str, Part); 8] = [
    ("post of a Send", Part::Post),
    ("post of a receive", Part::PostRecv),
    ("poll that finds a receive", Part::PollRecv),
    ("poll that finds a Send", Part::PollSend),
    ("two polls that find nothing", Part::PollEmpty),
    ("post of a Send in a list of 16", Part::PostList),
    ("poll of a receive of such a list", Part::PollRecvs),
    ("poll of a Send of such a list", Part::PollSends),
];

/// The calls that valgrind counts: it knows them by this name.
#[inline(never)]
fn counted_call<R>(call: impl FnOnce() -> R) -> R {
    call()
}

/// One end of the connection.
struct End {
    qp: RcQp,
    cq: Cq,
    rnic: Rnic,
    mr: Mr,
    _memory: Buffer,
}

impl End {
    fn new() -> Self {
        let mut config = Config::default();
        config.same_host = SameHostMode::Ring;
        config.same_host_after = 0;
        let rnic = Rnic::open(config).expect("a device");
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(1024).expect("a completion queue");
        let memory = Buffer::zeroed(2 * LENGTH).expect("memory");
        let mr = pd.register(memory.region(), Access::LOCAL_WRITE);
        let mr = mr.expect("a region");
        let qp = pd.create_rc_qp(&RcQpAttr::new(&cq, &cq));
        let end = Self {
            qp: qp.expect("a queue pair"),
            cq,
            rnic,
            mr,
            _memory: memory,
        };
        (0..LIST).for_each(|_| end.post_recv());
        end
    }

    fn connect(&self, peer: &Self) {
        let mpa = MpaConfig::default();
        let listener = RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), mpa.clone());
        let listener = listener.expect("a listener");
        thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.accept(SOON).expect("a connection");
                let request = request.expect("a request in time");
                request.accept(&peer.qp, DEPTHS, b"").expect("accepted");
            });
            let connected = self.qp.connect(listener.local_addr(), &mpa, b"");
            connected.expect("connected");
        });
    }

    fn post_recv(&self) {
        let sges = [self.mr.sge(LENGTH..)];
        let wr = RecvWr {
            wr_id: 1,
            sges: &sges,
        };
        self.qp.post_recv(&[wr]).expect("there is room");
    }

    fn send(&self) {
        let sges = [self.mr.sge(..LENGTH)];
        let posted = self.qp.post_send(&[RcSendWr::new(2, SEND, &sges)]);
        posted.expect("there is room");
    }

    fn send_list(&self) {
        let sges = [self.mr.sge(..LENGTH)];
        let wrs = [RcSendWr::new(2, SEND, &sges); LIST];
        self.qp.post_send(&wrs).expect("there is room");
    }

    /// Polls once.
    fn poll(&self, out: &mut [Wc]) -> usize {
        self.cq.poll(out).expect("no completion is lost")
    }
}

/// The ends of a connection that goes by memory.
struct Ends {
    client: End,
    server: End,
    /// The part that is counted, once warm.
    counted: Option<Part>,
}

impl Ends {
    /// Ends that have met: under valgrind, beside other work, the time for that may be over before.
    fn connected() -> Self {
        for _ in 0..20 {
            let [client, server] = [End::new(), End::new()];
            client.connect(&server);
            let mut ends = Self {
                client,
                server,
                counted: None,
            };
            for _ in 0..TO_MEET {
                ends.exchange(1);
                // Nothing comes, and time passes for the meeting.
                let came = ends.server.cq.wait(Duration::from_millis(1));
                assert_eq!(came.expect("the completion queue waits"), None);
                let met = |end: &End| end.rnic.counters().lane_octets_sent > 0;
                if met(&ends.client) && met(&ends.server) {
                    return ends;
                }
            }
        }
        panic!("no ends meet");
    }

    fn call<R>(&self, part: Part, call: impl FnOnce() -> R) -> R {
        if self.counted == Some(part) {
            counted_call(call)
        } else {
            call()
        }
    }

    /// Has `end` poll until so many completions are there.
    fn take(&self, part: Part, end: &End, opcode: WcOpcode, count: usize) {
        let mut found = 0;
        let mut out = [Wc::default(); LIST];
        for _ in 0..POLLS {
            if found >= count {
                return;
            }
            let wanted = &mut out[..count];
            let polled = self.call(part, || end.poll(wanted));
            for wc in &out[..polled] {
                assert_eq!((wc.status, wc.opcode), (WcStatus::Success, opcode));
            }
            found += polled;
        }
        panic!("completions do not come");
    }

    /// One message after the other, from either end by turns.
    fn exchange(&mut self, messages: usize) {
        for _ in 0..messages {
            std::mem::swap(&mut self.client, &mut self.server);
            let Self { client, server, .. } = &*self;
            self.call(Part::Post, || client.send());
            self.take(Part::PollRecv, server, WcOpcode::Recv, 1);
            self.call(Part::PostRecv, || server.post_recv());
            self.take(Part::PollSend, client, WcOpcode::Send, 1);
            for end in [client, server] {
                let mut out = [Wc::default()];
                assert_eq!(self.call(Part::PollEmpty, || end.poll(&mut out)), 0);
            }
        }
    }

    fn exchange_lists(&self, lists: usize) {
        let Self { client, server, .. } = self;
        for _ in 0..lists {
            self.call(Part::PostList, || client.send_list());
            self.take(Part::PollRecvs, server, WcOpcode::Recv, LIST);
            (0..LIST).for_each(|_| server.post_recv());
            self.take(Part::PollSends, client, WcOpcode::Send, LIST);
        }
    }
}

/// Does what valgrind counts.
fn run(part: Part) {
    let mut ends = Ends::connected();
    ends.exchange(WARM);
    ends.exchange_lists(WARM / LIST);
    ends.counted = Some(part);
    match part {
        Part::PostList | Part::PollRecvs | Part::PollSends => ends.exchange_lists(COUNTED / LIST),
        _ => ends.exchange(COUNTED),
    }
}

/// Instructions of one message in these calls.
fn count(row: &str) -> io::Result<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        // Else a thread that polls leaves the background thread no turn.
        .arg("--fair-sched=yes")
        .arg("--toggle-collect=*counted_call*")
        .arg(env::current_exe()?)
        .env(ROW, row)
        .output()?;
    let report = String::from_utf8_lossy(&output.stderr);
    let collected = report.split("Collected : ").nth(1);
    let octets = collected.and_then(|it| it.split_whitespace().next());
    let instructions: Option<f64> = octets.and_then(|it| it.parse().ok());
    instructions
        .filter(|_| output.status.success())
        .map(|it| it / COUNTED as f64)
        .ok_or_else(|| io::Error::other(report.into_owned()))
}

/// Names the row to be run, for the program under valgrind.
const ROW: &str = "ROW";

fn main() {
    if let Ok(wanted) = env::var(ROW) {
        let row = ROWS.iter().find(|(name, _)| *name == wanted);
        run(row.expect("the name of a row").1);
        return;
    }
    println!("instructions of one message of {LENGTH} octets");
    for (name, _) in ROWS {
        match count(name) {
            Ok(instructions) => println!("{name:36} {instructions:8.1}"),
            Err(error) => println!("{name:36} {error}"),
        }
    }
}
