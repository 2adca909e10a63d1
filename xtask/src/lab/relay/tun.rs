//! TUN devices of network namespaces, held by this process.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::lab::namespace::{Namespace, require};
use crate::lab::{INTERFACE, LabError};

/// Script of the opener. A TUN device belongs to the namespace in which its descriptor was opened, which an ordinary user enters only
/// with another process. It opens the device (`O_RDWR | O_NONBLOCK`), attaches the interface (`TUNSETIFF` with `IFF_TUN | IFF_NO_PI`), and
/// waits until its descriptor is taken.
const OPENER: &str = r#"
sysopen(my $tun, "/dev/net/tun", 04002) or die "/dev/net/tun: $!\n";
ioctl($tun, 0x400454ca, pack("a16 S x22", $ARGV[0], 0x1001)) or die "TUNSETIFF: $!\n";
$| = 1;
print fileno($tun), "\n";
<STDIN>;
"#;

/// Packets that wait for the relay at an interface: more than a processor's pause of 50 ms lets come at 1 Gbit/s.
const QUEUE: &str = "10000";

/// Makes the interface of a namespace, which is not up yet. It lives as long as the descriptor. Each read and write of it is a packet;
/// neither waits.
///
/// # Errors
/// [`LabError::NoTun`] where the kernel or a sandbox refuses, [`LabError::MissingProgram`] without perl.
pub(super) fn open(namespace: &Namespace, mtu: u32) -> Result<File, LabError> {
    require("perl", "perl-base")?;
    let mut opener = namespace
        .command("perl")
        .args(["-e", OPENER, INTERFACE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| LabError::Process {
            what: "perl".to_owned(),
            source,
        })?;
    let taken = take(&mut opener);
    // It ends when its standard input does.
    drop(opener.stdin.take());
    let mut words = String::new();
    if let Some(mut stderr) = opener.stderr.take() {
        // An unreadable reason is reported as an empty one.
        let _unread = stderr.read_to_string(&mut words);
    }
    let _status = opener.wait();
    let file = taken.map_err(|reason| LabError::NoTun {
        reason: match words.trim() {
            "" => reason,
            words => words.to_owned(),
        },
    })?;
    let mtu = mtu.to_string();
    let settings = ["link", "set", INTERFACE, "mtu", &mtu, "txqueuelen", QUEUE];
    namespace.set_up("ip", &settings)?;
    if namespace.has_ipv6() {
        // Without a link-local address the kernel sends nothing by itself, so packets are numbered alike in each run.
        namespace.set_up("ip", &["link", "set", INTERFACE, "addrgenmode", "none"])?;
    }
    Ok(file)
}

/// Takes the descriptor whose number the opener prints.
fn take(opener: &mut Child) -> Result<File, String> {
    let mut line = String::new();
    if let Some(stdout) = opener.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut line)
            .map_err(|error| error.to_string())?;
    }
    let number = line
        .trim()
        .parse()
        .map_err(|_| "the interface was not made".to_owned())?;
    let process = pidfd_open(Pid::from_child(opener), PidfdFlags::empty())
        .map_err(|error| format!("pidfd_open: {error}"))?;
    let descriptor = pidfd_getfd(process, number, PidfdGetfdFlags::empty())
        .map_err(|error| format!("pidfd_getfd: {error}"))?;
    Ok(File::from(descriptor))
}
