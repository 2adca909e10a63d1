//! Our connected queue pairs against the Linux kernel's siw.
//!
//! The guest's ends are `siw-ops`, which obeys commands of ours, and Debian's `rdma_client` and `rdma_server`. Contents are checked at both
//! ends. Coverage:
//!
//! | what | where |
//! |---|---|
//! | who connects × CRC × revision × RTR indication, each with Send, Write, Read and Send with Invalidate both ways | `table`: data, row by row |
//! | what siw cannot do, with the symptom | `table::LIMITS`: data; each is looked for |
//! | sizes 0, 1, odd, MULPDU ± 1, 1 MiB, 64 MiB | `operations` |
//! | several Reads at a time, fences, invalidated keys | `operations` |
//! | private data of 0, 1, odd, 256 octets and beyond; rejections; no answer; Markers | `startup` |
//! | refused accesses, and the Terminate and statuses at both ends | `refusals` |
//! | the connection's end in every phase of its life, by either end | `ends` |
//! | the end before siw takes TCP's connection, and between peer-to-peer Reply and RTR indication, in a VM of their own | `ends::impolite` |
//! | Debian's own programs in the guest, the Rust API here | `programs` |
//! | Debian's own programs at both ends | `verbs` |
//! | the conformance tester and siw's profile, in a VM of their own | `conform` |
//! | our own stack on another processor, without siw | `aarch64` |

mod aarch64;
mod conform;
mod ends;
mod operations;
mod ops;
mod programs;
mod raw;
mod refusals;
mod startup;
mod table;
mod verbs;

use core::time::Duration;
use std::time::Instant;

use dgiwarp::ReadDepths;
use dgiwarp_conform::siw::{self, Vm};
use ops::Siw;
use xtask::workspace::cross;

const LIMIT: Duration = Duration::from_secs(30);
const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };

/// Payload of `siw-ops`: octet i is 31 i + 7.
fn pattern(len: u32) -> Vec<u8> {
    repeated(len, |i| i.wrapping_mul(31).wrapping_add(7))
}

/// So many octets, `octet` of each one's index modulo 256.
fn repeated(len: u32, octet: impl Fn(u8) -> u8) -> Vec<u8> {
    let len = usize::try_from(len).unwrap();
    let period: Vec<u8> = (0..=u8::MAX).map(octet).collect();
    let mut octets = period.repeat(len.div_ceil(period.len()));
    octets.truncate(len);
    octets
}

fn inverted(octets: &[u8]) -> Vec<u8> {
    octets.iter().map(|octet| !octet).collect()
}

fn fnv1a(octets: &[u8]) -> u32 {
    octets.iter().fold(0x811c_9dc5, |hash, octet| {
        (hash ^ u32::from(*octet)).wrapping_mul(0x0100_0193)
    })
}

/// The harness itself: siw talks to siw, and statuses and output come through.
fn harness(vm: &Vm) {
    let pair = r#"pair 7174 "rping -s -a $GUEST_IP -C 3" "rping -c -a $GUEST_IP -C 3 -v""#;
    let output = vm.run(pair, LIMIT).unwrap();
    let pings = output
        .stdout
        .lines()
        .filter(|line| line.starts_with("ping data"))
        .count();
    assert_eq!((output.status.code(), pings), (Some(0), 3), "{output:?}");
    let output = vm.run("echo out; echo err >&2; exit 7", LIMIT).unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((output.stdout.trim(), output.stderr.trim()), ("out", "err"));
    drop(vm.spawn("sleep 100", Duration::from_secs(200)).unwrap());
    let output = vm.run("ps | grep -c '[s]leep 100'", LIMIT).unwrap();
    assert_eq!(
        output.stdout.trim(),
        "0",
        "a dropped command is ended in the guest"
    );
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a part took is told, no more"
)]
fn part(name: &str, body: impl FnOnce()) {
    let begin = Instant::now();
    body();
    eprintln!("{name}: {:.1?}", begin.elapsed());
}

/// siw as it is in the kernel.
#[test]
fn siw_as_it_is() {
    if let Some(reason) = siw::obstacle() {
        return xtask::skips::skip("siw", reason);
    }
    let vm = Vm::boot(&[]).unwrap();
    part("harness", || harness(&vm));
    part("programs", || programs::both_ways(&vm));
    part("verbs", || verbs::both_ways(&vm));

    let siw = Siw::new(&vm);
    part("operations", || operations::all(&siw));
    part("refusals", || refusals::all(&siw));
    part("startup", || startup::all(&siw));
    part("ends", || ends::all(&siw));
    siw.kernel_is_well();
}

/// siw with its constants changed, and all ways to be connected.
#[test]
fn siw_with_other_settings() {
    if let Some(reason) = siw::obstacle() {
        return xtask::skips::skip("siw", reason);
    }
    let vm = Vm::boot(&["peer_to_peer=0"]).unwrap();
    let siw = Siw::new(&vm);
    part("rows", || table::all(&siw));
    siw.kernel_is_well();
    drop(siw);
    drop(vm);
    part("impolite peers", ends::impolite);
}

/// The tester finds of siw what is known of it, and nothing else.
#[test]
fn siw_conforms_as_its_profile_says() {
    if let Some(reason) = siw::obstacle() {
        return xtask::skips::skip("siw", reason);
    }
    let vm = Vm::boot(&[]).unwrap();
    part("conform", || conform::completes(&vm));
}

/// Whether this machine lacks what tests on aarch64 need; the test is skipped then.
fn lacks_aarch64(test: &str) -> bool {
    let obstacle = siw::obstacle().or_else(verbs::obstacle);
    let reason = obstacle.map(str::to_owned);
    let reason = reason.or_else(|| cross::obstacle(cross::AARCH64));
    reason.inspect(|it| xtask::skips::skip(test, it)).is_some()
}

/// Debian's programs between an aarch64 machine and this one.
#[test]
#[ignore = "ten minutes"]
fn soak_aarch64_programs() {
    if !lacks_aarch64("soak_aarch64_programs") {
        aarch64::programs();
    }
}

/// Unit tests and the models of `loom` on aarch64.
#[test]
#[ignore = "an hour and a half"]
fn soak_aarch64_units() {
    if !lacks_aarch64("soak_aarch64_units") {
        aarch64::units();
    }
}
