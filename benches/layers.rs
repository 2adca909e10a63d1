//! Time of each layer of a datagram queue pair by itself, without a network: `cargo bench -p dgiwarp-benches`.

use std::hint::black_box;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dgiwarp::{Buffer, Config, RecvWr, Rnic, UdQpAttr, Wc};
use dgiwarp_codec::{PayloadSlice, crc};
use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_ddp::wire::TaggedHeader;
use dgiwarp_ddp::{Msn, RangeMap, STag, Segmenter, TaggedOffset};
use dgiwarp_llp_udp::{Format, plain};
use dgiwarp_memory::Region;
use dgiwarp_rdmap::datagram::segment::{self, Prefix, Template};
use dgiwarp_rdmap::datagram::{
    Delivery, DropReason, Origin, PlaceFailed, Receiver, ReceiverConfig, Record, RecordHandle,
    TakeError, Ulp,
};
use dgiwarp_rdmap::wire::{Extension, Flags};

/// Payload of a segment of Ethernet's size.
const SEGMENT: u32 = 1430;
const SIZES: [usize; 3] = [64, 1440, 65_536];

fn headers(c: &mut Criterion) {
    let mut datagram = [0; 64];
    template(1).emit(segment(64), &mut datagram);
    c.bench_function("header/tagged, parse and emit", |b| {
        b.iter(|| {
            let parsed = TaggedHeader::parse(black_box(&datagram));
            parsed.map(|(header, _)| header.emit())
        });
    });
}

fn digests(c: &mut Criterion) {
    let mut group = c.benchmark_group("crc32c");
    for size in SIZES {
        let octets = vec![7; size];
        group.throughput(Throughput::Bytes(octets.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| crc::crc32c(black_box(&octets)));
        });
    }
    group.finish();
}

fn placements(c: &mut Criterion) {
    let mut group = c.benchmark_group("placement");
    let buffer = Buffer::zeroed(65_536).expect("memory");
    let region = buffer.region();
    for size in SIZES {
        let octets = vec![7; size];
        group.throughput(Throughput::Bytes(octets.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                let slice = region.slice(0, octets.len()).expect("it is as long");
                slice.place(black_box(&octets));
            });
        });
    }
    group.finish();
}

/// The segments of 64 KiB, as they come and with every other one late.
fn maps(c: &mut Criterion) {
    let mut group = c.benchmark_group("validity map");
    let count = 65_536 / SEGMENT;
    let in_order: Vec<u32> = (0..count).collect();
    let every_other = (0..count).step_by(2).chain((1..count).step_by(2)).collect();
    for (name, order) in [("in order", in_order), ("every other late", every_other)] {
        group.throughput(Throughput::Elements(u64::from(count)));
        group.bench_function(name, |b| {
            let mut map = RangeMap::new();
            b.iter(|| {
                map.clear();
                for &at in black_box(&order) {
                    let _ = map.insert(at * SEGMENT, (at + 1) * SEGMENT);
                }
            });
        });
    }
    group.finish();
}

/// A completion queue that has nothing, of a device without and with a queue pair to look at.
fn completion_queues(c: &mut Criterion) {
    let mut group = c.benchmark_group("completion queue");
    let rnic = Rnic::open(Config::default()).expect("a device");
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(64).expect("a queue");
    let mut found = vec![Wc::default(); 16];
    group.bench_function("poll, nobody to receive for", |b| {
        b.iter(|| cq.poll(black_box(&mut found)));
    });
    let qp = pd
        .create_ud_qp(&UdQpAttr::new(&cq, &cq))
        .expect("a queue pair");
    group.bench_function("poll, one socket without data", |b| {
        b.iter(|| cq.poll(black_box(&mut found)));
    });
    // A flush makes completions of posted receives, and nothing else.
    let receives = [RecvWr {
        wr_id: 7,
        sges: &[],
    }; 16];
    group.throughput(Throughput::Elements(receives.len() as u64));
    group.bench_function("receives posted, completed and polled", |b| {
        b.iter(|| {
            qp.post_recv(black_box(&receives)).expect("room");
            qp.flush();
            assert_eq!(cq.poll(&mut found), Ok(receives.len()));
        });
    });
    group.finish();
}

/// A message out of one half and into the other: headers, CRC, checks, placement and its completion; all but sockets and queues.
fn messages(c: &mut Criterion) {
    let mut group = c.benchmark_group("message without a network");
    for (name, length, is_send) in [
        ("Send, 64", 64, true),
        ("Write-Record, 64", 64, false),
        (
            "Write-Record, 64 KiB in segments of Ethernet",
            65_536,
            false,
        ),
    ] {
        let mut halves = Halves::new();
        group.throughput(Throughput::Bytes(u64::from(length)));
        group.bench_function(name, |b| {
            b.iter(|| halves.message(length, is_send));
            assert!(halves.target.completed > 0);
        });
    }
    group.finish();
}

struct Halves {
    receiver: Receiver<u32, ()>,
    target: Target,
    now: Instant,
    number: u32,
    payload: Vec<u8>,
}

impl Halves {
    fn new() -> Self {
        let config = ReceiverConfig {
            record_slots: 64,
            ..ReceiverConfig::default()
        };
        let buffer = Buffer::zeroed(65_536).expect("memory");
        #[expect(clippy::disallowed_methods, reason = "a benchmark has a real clock")]
        let now = Instant::now();
        Self {
            receiver: Receiver::new(config),
            target: Target {
                region: buffer.region(),
                delivered: None,
                completed: 0,
            },
            now,
            number: 0,
            payload: vec![7; 65_536],
        }
    }

    fn message(&mut self, length: u32, is_send: bool) {
        self.number += 1;
        let template = match is_send {
            true => Template::Send {
                qkey: 0,
                msn: Msn::new(self.number),
                solicited: false,
            },
            false => template_of(self.number, length),
        };
        let prefix = Prefix::new(template, None);
        let mut datagram = [0; 1472];
        let mut segments = Segmenter::new(length);
        while let Some(segment) = segments.peek(SEGMENT) {
            segments.advance(segment);
            let start = prefix.emit(segment, &mut datagram);
            let from = segment.offset as usize;
            let payload = &self.payload[from..from + segment.length as usize];
            let end = start + payload.len();
            datagram[start..end].copy_from_slice(payload);
            let sealed = &mut datagram[..end + plain::OVERHEAD.tail];
            plain::seal(Format::Segment, sealed);
            let opened = plain::open(PayloadSlice::new(&*sealed));
            let (_, segment) = opened.expect("the CRC is right");
            let parsed = segment::parse(segment, false).expect("the headers are right");
            self.receiver
                .handle_parsed(self.now, &1.into(), &parsed, &mut self.target)
                .expect("it is taken");
        }
        if let Some(handle) = self.target.delivered.take() {
            self.receiver.release(handle);
        }
    }
}

fn template(number: u32) -> Template {
    template_of(number, 64)
}

fn template_of(number: u32, length: u32) -> Template {
    Template::WriteRecord {
        stag: STag::new(0x100),
        base: TaggedOffset::new(0),
        extension: Extension {
            flags: Flags::empty(),
            epoch: 1,
            number,
            length,
            offset: 0,
            immediate: 0,
        },
    }
}

fn segment(length: u32) -> dgiwarp_ddp::Segment {
    Segmenter::new(length)
        .peek(length)
        .expect("there is a first segment")
}

/// Memory that all may write to, and receives without end.
struct Target {
    region: Region,
    delivered: Option<RecordHandle>,
    completed: u64,
}

impl Target {
    fn place(&self, start: u64, payload: &[u8]) -> Result<(), DropReason> {
        let start = usize::try_from(start).expect("within the buffer");
        let slice = self.region.slice(start, payload.len());
        slice.expect("within the buffer").place(payload);
        Ok(())
    }
}

impl Ulp<u32> for Target {
    type Receive = ();
    type Payload = [u8];

    fn check_write(&self, _origin: Origin<u32>, span: TaggedSpan) -> Result<(), DropReason> {
        black_box(span);
        Ok(())
    }

    fn place_write(
        &mut self,
        _origin: Origin<u32>,
        _stag: STag,
        start: TaggedOffset,
        payload: PayloadSlice<'_, [u8]>,
    ) -> Result<(), DropReason> {
        self.place(start.get(), payload.octets())
    }

    fn take_receive(&mut self, _length: u32) -> Result<(), TakeError> {
        Ok(())
    }

    fn place_untagged(
        &mut self,
        (): &(),
        offset: u32,
        payload: PayloadSlice<'_, [u8]>,
    ) -> Result<(), PlaceFailed> {
        self.place(offset.into(), payload.octets())
            .map_err(|_| PlaceFailed)
    }

    fn deliver(&mut self, (): (), _delivery: Delivery<u32>) {
        self.completed += 1;
    }

    fn fail(&mut self, (): ()) {}

    fn give_back(&mut self, (): ()) {}

    fn deliver_record(&mut self, handle: RecordHandle, _record: &Record<u32>) {
        self.delivered = Some(handle);
        self.completed += 1;
    }

    fn deliver_segment(
        &mut self,
        _handle: RecordHandle,
        _record: &Record<u32>,
        _offset: u32,
        _length: u32,
    ) -> bool {
        true
    }

    fn record_ring_full(&mut self) {}

    fn count(&mut self, _reason: DropReason) {}
}

/// Posting, receiving and polling a Send over a network that takes no time.
fn null_llp(c: &mut Criterion) {
    let mut group = c.benchmark_group("post and poll over a null LLP");
    #[expect(clippy::disallowed_methods, reason = "a benchmark has a real clock")]
    let now = Instant::now();
    let mut queue_pair = dgiwarp_engine::null_llp::NullLlp::new(now);
    for length in [1, 64, 1024] {
        group.bench_function(BenchmarkId::from_parameter(length), |b| {
            b.iter(|| assert_eq!(queue_pair.message(black_box(length)), 2));
        });
    }
    group.finish();
}

criterion_group!(
    layers,
    headers,
    digests,
    placements,
    maps,
    completion_queues,
    messages,
    null_llp
);
criterion_main!(layers);
