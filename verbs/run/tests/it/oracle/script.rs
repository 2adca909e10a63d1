//! Random scripts: calls of both ends, as lines that the workers take.
//!
//! A call begins with its end, `c` or `s`. Calls before `&` wait for the one behind it. `~` is a call that is made at once, not after the effects of
//! those before it have come.

use proptest::collection::vec;
use proptest::prelude::*;

/// A script: whether `connect` waits, the flags of `accept4`, and calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) waits: bool,
    pub(super) flags: u32,
    pub(super) calls: Vec<String>,
}

impl Script {
    /// A script as it is printed.
    pub(super) fn parse(text: &str) -> Self {
        let mut calls = text.split(';').map(|it| it.trim().to_owned());
        let first = calls.next().unwrap();
        let mut first = first.split(' ').skip(1);
        Self {
            waits: first.next() == Some("1"),
            flags: first.next().unwrap().parse().unwrap(),
            calls: calls.collect(),
        }
    }
}

impl std::fmt::Display for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "begin {} {}", u8::from(self.waits), self.flags)?;
        self.calls.iter().try_for_each(|call| write!(f, "; {call}"))
    }
}

/// A sum of some of the bits.
fn some(bits: &'static [u32]) -> impl Strategy<Value = u32> {
    let bit = |at: &u32| prop_oneof![3 => Just(0), 1 => Just(*at)];
    let bits: Vec<_> = bits.iter().map(bit).collect();
    bits.prop_map(|bits| bits.iter().sum())
}

fn one_of(values: &'static [u32]) -> impl Strategy<Value = u32> {
    (0..values.len()).prop_map(|at| values[at])
}

fn octets() -> impl Strategy<Value = u32> {
    prop_oneof![
        1 => Just(0_u32),
        4 => 1..20_u32,
        3 => 1..3000_u32,
        1 => 1..12_000_u32,
    ]
}

fn slot() -> impl Strategy<Value = u32> {
    prop_oneof![12 => Just(0_u32), 1 => 1..4_u32]
}

/// Arguments behind the name and the slot of a call.
fn of(
    name: &'static str,
    arguments: impl Strategy<Value = Vec<u32>> + 'static,
) -> BoxedStrategy<String> {
    (slot(), arguments)
        .prop_map(move |(slot, arguments)| {
            let more: String = arguments.iter().map(|it| format!(" {it}")).collect();
            format!("{name} {slot}{more}")
        })
        .boxed()
}

fn two(
    one: impl Strategy<Value = u32> + 'static,
    other: impl Strategy<Value = u32> + 'static,
) -> BoxedStrategy<Vec<u32>> {
    (one, other)
        .prop_map(|(one, other)| vec![one, other])
        .boxed()
}

fn three(
    one: impl Strategy<Value = u32> + 'static,
    other: impl Strategy<Value = u32> + 'static,
    third: impl Strategy<Value = u32> + 'static,
) -> BoxedStrategy<Vec<u32>> {
    (one, other, third)
        .prop_map(|(one, other, third)| vec![one, other, third])
        .boxed()
}

/// `MSG_DONTWAIT`, `MSG_PEEK`, `MSG_WAITALL`, `MSG_TRUNC`.
const RECEIVES: &[u32] = &[0x40, 2, 0x100, 0x20];
/// `MSG_DONTWAIT`, `MSG_NOSIGNAL`.
const SENDS: &[u32] = &[0x40, 0x4000];
/// `POLLIN`, `POLLPRI`, `POLLOUT`, `POLLRDNORM`, `POLLWRNORM`, `POLLRDHUP`.
const POLLS: &[u32] = &[1, 2, 4, 0x40, 0x100, 0x2000];
/// `EPOLLIN`, `EPOLLPRI`, `EPOLLOUT`, `EPOLLRDHUP`, `EPOLLONESHOT`, `EPOLLET`.
const SETS: &[u32] = &[1, 2, 4, 0x2000, 1 << 30, 1 << 31];
/// Levels and names: `SO_ERROR`, `SO_TYPE`, `SO_ACCEPTCONN`, `SO_DOMAIN`, `SO_PROTOCOL`, `SO_KEEPALIVE`, `SO_REUSEADDR`, `TCP_NODELAY`.
const OPTIONS: &[[u32; 2]] = &[
    [1, 4],
    [1, 4],
    [1, 4],
    [1, 3],
    [1, 30],
    [1, 39],
    [1, 38],
    [1, 9],
    [1, 2],
    [6, 1],
];

fn sending() -> BoxedStrategy<String> {
    let pieces = || three(octets(), octets(), octets());
    prop_oneof![
        4 => of("send", two(octets(), some(SENDS))),
        2 => of("write", octets().prop_map(|it| vec![it])),
        1 => of("writev", pieces()),
        1 => of("sendmsg", three(octets(), octets(), some(SENDS))),
        1 => of("sendmany", three(octets(), octets(), some(SENDS))),
        1 => of("sendfile", two(octets(), 0..99_000_u32)),
        1 => of("splicein", two(octets(), 0..2_u32)),
    ]
    .boxed()
}

fn receiving() -> BoxedStrategy<String> {
    let pieces = || three(octets(), octets(), octets());
    prop_oneof![
        5 => of("recv", two(octets(), some(RECEIVES))),
        2 => of("read", octets().prop_map(|it| vec![it])),
        1 => of("readv", pieces()),
        1 => of("recvmsg", three(octets(), octets(), some(RECEIVES))),
        // MSG_WAITFORONE, or none that waits.
        1 => of("recvmany", three(octets(), octets(), one_of(&[0x40, 0x42, 0x1_0000]))),
        1 => of("recvfrom", two(octets(), some(RECEIVES))),
        1 => of("spliceout", octets().prop_map(|it| vec![it])),
    ]
    .boxed()
}

fn ending() -> BoxedStrategy<String> {
    prop_oneof![
        3 => of("shutdown", (0..4_u32).prop_map(|it| vec![it])),
        1 => of("close", Just(vec![])),
    ]
    .boxed()
}

fn descriptors() -> BoxedStrategy<String> {
    let to = || (1..4_u32).prop_map(|it| vec![it]);
    prop_oneof![
        of("dup", to()),
        of("dupfd", to()),
        of("dup2", to()),
        (1..4_u32).prop_map(|it| format!("close {it}")),
    ]
    .boxed()
}

fn observing() -> BoxedStrategy<String> {
    prop_oneof![
        of("poll", three(some(POLLS), Just(0), 0..2_u32)),
        of("select", two(0..8_u32, Just(0))),
        of("state", Just(vec![])),
        of("sockname", Just(vec![])),
        of("peername", Just(vec![])),
        of(
            "getopt",
            (0..OPTIONS.len()).prop_map(|at| OPTIONS[at].to_vec())
        ),
    ]
    .boxed()
}

fn setting() -> BoxedStrategy<String> {
    let on = || (0..2_u32).prop_map(|it| vec![it]);
    prop_oneof![
        of("nonblock", on()),
        of("fionbio", on()),
        of("getfl", Just(vec![])),
        of("getfd", Just(vec![])),
        of("rcvtimeo", one_of(&[0, 20]).prop_map(|it| vec![it])),
        of("sndtimeo", one_of(&[0, 20]).prop_map(|it| vec![it])),
        of("setopt", three(Just(6), Just(1), 0..2_u32)),
        of("setopt", three(Just(1), Just(9), 0..2_u32)),
        of("again", Just(vec![])),
        of("listenon", Just(vec![])),
        of("bind", Just(vec![])),
        of("acceptat", Just(vec![])),
    ]
    .boxed()
}

/// A connection is one member of a set, which has its first slot.
fn ctl((operation, events, data): (u32, u32, u32)) -> String {
    format!("ctl 0 {operation} {events} {data}")
}

fn set() -> BoxedStrategy<String> {
    prop_oneof![
        1 => (1..4_u32, some(SETS), 0..4_u32).prop_map(ctl),
        1 => (Just(1), some(SETS).prop_map(|it| it | 1), 0..4_u32).prop_map(ctl),
        2 => (1..5_u32).prop_map(|most| format!("wait 0 {most} 0")),
    ]
    .boxed()
}

/// A call that waits for one of the other end.
fn waiting() -> BoxedStrategy<String> {
    let waits = prop_oneof![
        2 => (1..3000_u32).prop_map(|it| format!("recv 0 {it} 0")),
        1 => (1..3000_u32).prop_map(|it| format!("recv 0 {it} 2")),
        1 => some(&[1, 2, 0x40, 0x2000]).prop_map(|it| format!("poll 0 {} 1000", it | 1)),
        1 => Just("select 0 5 1000".to_owned()),
        1 => (1..4_u32).prop_map(|it| format!("wait 0 {it} 1000")),
    ];
    let ends = prop_oneof![
        (1..200_u32).prop_map(|it| format!("send 0 {it} 16384")),
        (1..3_u32).prop_map(|it| format!("shutdown 0 {it}")),
        Just("close 0".to_owned()),
    ];
    let small = (waits, ends).prop_map(|(waits, ends)| format!("{waits} & {ends}"));
    let large = (30_000..300_000_u32).prop_map(|it| format!("recv 0 {it} 256 & send 0 {it} 16384"));
    prop_oneof![6 => small, 1 => large].boxed()
}

fn call() -> BoxedStrategy<String> {
    let alone = prop_oneof![
        6 => sending(),
        6 => receiving(),
        1 => ending(),
        1 => descriptors(),
        4 => observing(),
        1 => setting(),
        4 => set(),
    ];
    let alone = (
        prop_oneof![1 => Just("~"), 3 => Just("")],
        0..2_usize,
        alone,
    )
        .prop_map(|(at_once, end, call)| format!("{at_once}{} {call}", ["c", "s"][end]));
    let pair = (0..2_usize, waiting()).prop_map(|(end, both)| {
        let (ends, others) = (["c", "s"][end], ["s", "c"][end]);
        format!("{ends} {}", both.replace("& ", &format!("& {others} ")))
    });
    prop_oneof![12 => alone, 1 => pair].boxed()
}

/// All scripts.
pub(super) fn scripts() -> impl Strategy<Value = Script> {
    let flags = one_of(&[0, 0o4000, 0o2_000_000, 0o2_004_000]);
    (any::<bool>(), flags, vec(call(), 1..40)).prop_map(|(waits, flags, calls)| Script {
        waits,
        flags,
        calls,
    })
}
