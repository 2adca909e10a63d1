//! The manual page dgiwarp(7): the device apart from the programs.

use dgiwarp_cli::{Page, Part, Variable, environment};
use dgiwarp_verbs::describe;

/// All settings.
pub(crate) fn variables() -> Vec<Variable> {
    let settings = describe::settings().into_iter();
    settings
        .map(|setting| Variable {
            name: setting.name.to_owned(),
            default: setting.default,
            about: setting.help.to_owned(),
        })
        .collect()
}

/// The pages that this program brings beside its own.
pub(crate) fn pages() -> Vec<Page> {
    let mut parts = Vec::new();
    section(&mut parts, "DESCRIPTION", DESCRIPTION);
    parts.extend(environment(&variables()));
    list(&mut parts, "PORTS", PORTS_INTRODUCTION, PORTS);
    list(&mut parts, "FILES", "", FILES);
    section(&mut parts, "SECURITY", SECURITY);
    section(
        &mut parts,
        "SEE ALSO",
        &["dgiwarp-run(1), dgiwarp-info(1), dgiwarp-ss(1), dgiwarp-perf(1), verbs(7), rdma_cm(7)"],
    );
    vec![Page {
        name: "dgiwarp".to_owned(),
        section: 7,
        about: "software RDMA network card in user space".to_owned(),
        parts,
    }]
}

fn section(parts: &mut Vec<Part>, heading: &str, paragraphs: &[&str]) {
    parts.push(Part::Heading(heading.to_owned()));
    parts.extend(
        paragraphs
            .iter()
            .map(|text| Part::Paragraph((*text).to_owned())),
    );
}

fn list(parts: &mut Vec<Part>, heading: &str, introduction: &str, items: &[(&str, &str)]) {
    parts.push(Part::Heading(heading.to_owned()));
    if !introduction.is_empty() {
        parts.push(Part::Paragraph(introduction.to_owned()));
    }
    parts.extend(items.iter().map(|(term, text)| Part::Item {
        term: (*term).to_owned(),
        text: (*text).to_owned(),
    }));
}

const DESCRIPTION: &[&str] = &[
    "dgiwarp is an RNIC without hardware: a shared library that takes the place of rdma-core's `libibverbs.so.1` and `librdmacm.so.1`. It needs no kernel module, \
     no device node, no root, no capability and no locked memory. A program runs on it unchanged with `dgiwarp-run`(1), or is linked to it with the flags that \
     `pkg-config --libs dgiwarp` prints.",
    "Reliable connected queue pairs use iWARP over TCP (RFC 5040, 5041, 5044, 6581, 7306) and connect to any RNIC. Datagram queue pairs and \
     unreliable connected ones use a mapping of these protocols onto UDP.",
    "The device is called `dgiwarp0` and has one port. Its GIDs are the addresses of the host, or of the network namespace or container, that it runs in.",
];

const PORTS_INTRODUCTION: &str = "Firewalls have to pass these ports, and ICMP messages that a packet is too big. Queue pairs whose programs exchange QPNs and addresses do not work \
     across address translation.";

const PORTS: &[(&str, &str)] = &[
    (
        "UDP, the number of the queue pair",
        "A UD or UC queue pair has a UDP port, and its QPN is that port's number. The system chooses it from the range of \
         /proc/sys/net/ipv4/ip_local_port_range.",
    ),
    (
        "TCP, the number of the queue pair divided by 256",
        "An RC queue pair whose program exchanges QPNs has a TCP port, chosen by the system, or from the range of `DGIWARP_PORTS`. One port serves 256 queue pairs.",
    ),
    (
        "TCP or UDP, the port that programs name to rdma_cm",
        "Connections of rdma_cm go to the TCP port of the same number, lookups of datagram services to the UDP port of the same number, both with \
         `DGIWARP_PORT_OFFSET` added. The program at the other end answers from the queue pair's own port. Connections query the UDP port of the \
         same number too: a listener whose TCP port another socket has is at a TCP port of the system's choice.",
    ),
    (
        "UDP 18514",
        "Messages to broadcast and multicast groups, on all hosts; `DGIWARP_GROUP_PORT` changes it.",
    ),
    (
        "TCP 18515",
        "The control connection of `dgiwarp-perf`(1); the option --port changes it.",
    ),
];

const FILES: &[(&str, &str)] = &[
    (
        "PREFIX/lib/dgiwarp",
        "The library under its own name and the sonames of libibverbs and librdmacm, and one that redirects /dev/infiniband and \
         /sys/class/infiniband. This folder is not on the search path of the dynamic linker: programs use rdma-core's libraries unless run \
         by `dgiwarp-run`(1) or linked to these.",
    ),
    (
        "PREFIX/lib/pkgconfig/dgiwarp.pc",
        "Flags for programs that are linked to the library.",
    ),
    (
        "$XDG_RUNTIME_DIR/dgiwarp, or /tmp/dgiwarp-UID",
        "Device files that `dgiwarp-run`(1) presents to programs. The directory belongs to the user alone and may be removed while no program runs.",
    ),
];

const SECURITY: &[&str] = &[
    "Messages are neither encrypted nor authenticated. An attacker on the network can read all of them and write to registered memory. SECURITY.md \
     states the guarantees.",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_setting() {
        let pages = pages();
        let text = pages[0].render("0");
        for setting in describe::settings() {
            assert!(text.contains(setting.name), "{}", setting.name);
        }
        assert!(text.contains(".SH PORTS\n") && text.contains(".SH FILES\n"));
    }
}
