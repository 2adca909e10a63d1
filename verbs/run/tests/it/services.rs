//! Datagram services and groups of rdma_cm as a C program written against the installed headers sees them.

use crate::common::{RUN, compile, scratch, succeed};
use dgiwarp_verbs::gid::host_gids;
use std::net::IpAddr;
use std::process::Command;

/// Groups that nothing else here uses.
const GROUP: &str = "239.192.18.77";
const GROUP6: &str = "ff05::18:77";

#[test]
fn services_and_groups_do_what_the_man_pages_say() {
    let directory = scratch("cmud");
    let source = include_str!("../c/cmud.c");
    let libraries = ["-Wall", "-lrdmacm", "-libverbs", "-lpthread"];
    let Some(program) = compile("cmud", &directory, source, &libraries) else {
        return;
    };
    // Link-local addresses need an interface, which the program is not told.
    let is_global = |address: &IpAddr| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    for gid in host_gids()
        .unwrap()
        .iter()
        .filter(|gid| is_global(&gid.address))
    {
        let group = if gid.address.is_ipv4() { GROUP } else { GROUP6 };
        let mut command = Command::new("timeout");
        command.args(["60", RUN]).arg(&program);
        let output = succeed(command.arg(gid.address.to_string()).arg(group));
        let text = |octets| String::from_utf8_lossy(octets).into_owned();
        let said = (text(&output.stdout), text(&output.stderr));
        assert_eq!(said, ("ok\n".to_owned(), String::new()), "{}", gid.address);
    }
}
