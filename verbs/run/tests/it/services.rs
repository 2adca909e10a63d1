//! Datagram services and groups of rdma_cm as a C program written against the installed headers sees them.

use crate::common::each::{addresses, compiled, runs};

/// Groups that nothing else here uses.
const GROUP: &str = "239.192.18.77";
const GROUP6: &str = "ff05::18:77";

#[test]
fn services_and_groups_do_what_the_man_pages_say() {
    let Some(program) = compiled("cmud", include_str!("../c/cmud.c")) else {
        return;
    };
    for address in addresses() {
        let group = if address.is_ipv4() { GROUP } else { GROUP6 };
        runs(&program, &[address.to_string(), group.to_owned()]);
    }
}
