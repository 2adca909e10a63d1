//! Struct layouts, names and rates compared with what C programs see through the installed headers and library.

use crate::common::{RUN, compile, scratch, skip, succeed, system_library};
use dgiwarp_verbs::abi::{LAYOUTS, Layout};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

fn expected(layout: &Layout) -> String {
    let mut text = format!("{} {}\n", layout.c_type, layout.size);
    for (field, offset) in layout.fields {
        writeln!(text, "{}.{field} {offset}", layout.c_type).unwrap();
    }
    text
}

fn printing(layout: &Layout) -> String {
    let c_type = layout.c_type;
    let mut text = format!("printf(\"{c_type} %zu\\n\", sizeof({c_type}));\n");
    for (field, _) in layout.fields {
        writeln!(
            text,
            "printf(\"{c_type}.{field} %zu\\n\", offsetof({c_type}, {field}));"
        )
        .unwrap();
    }
    text
}

#[test]
fn structs_are_laid_out_as_the_c_compiler_lays_them_out() {
    let directory = scratch("layouts");
    let all: Vec<&Layout> = LAYOUTS.iter().copied().flatten().collect();
    assert!(all.len() > 30, "the tables of layouts are empty");
    let body: String = all.iter().map(|layout| printing(layout)).collect();
    let source = format!(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/ib.h>\n#include <infiniband/efadv.h>\n#include <rdma/rdma_cma.h>\n\
         #include <infiniband/dgiwarpdv.h>\nint main(void) {{\n{body}return 0;\n}}\n"
    );
    if !Path::new("/usr/include/rdma/rdma_cma.h").is_file() {
        return skip(
            "layouts",
            "rdma/rdma_cma.h is missing (Debian package librdmacm-dev)",
        );
    }
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../include");
    let Some(program) = compile("layouts", &directory, &source, &[include]) else {
        return;
    };
    let output = succeed(&mut Command::new(program));
    let expected: String = all.iter().map(|layout| expected(layout)).collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

/// Prints every name and rate in and a little beyond the range of each enum.
const NAMES: &str = r#"
#include <stdio.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
const char *ibv_get_sysfs_path(void); /* exported, but in no installed header */
int main(void) {
    for (int i = -3; i < 40; i++) {
        printf("%d|%s|%s|%s|%s|%s\n", i, ibv_wc_status_str(i), ibv_event_type_str(i), ibv_node_type_str(i),
               ibv_port_state_str(i), rdma_event_str(i));
        printf("%d %d %d\n", i, ibv_rate_to_mult(i), ibv_rate_to_mbps(i));
        printf("%d %d\n", mult_to_ibv_rate(ibv_rate_to_mult(i)), mbps_to_ibv_rate(ibv_rate_to_mbps(i)));
    }
    for (int mult = -1; mult < 500; mult++)
        printf("%d %d\n", mult, mult_to_ibv_rate(mult));
    printf("%s %d\n", ibv_get_sysfs_path(), ibv_fork_init());
    return 0;
}
"#;

#[test]
fn names_and_rates_are_those_of_the_distributions_library() {
    for soname in ["libibverbs.so.1", "librdmacm.so.1"] {
        if system_library("names", soname).is_none() {
            return;
        }
    }
    let directory = scratch("names");
    let Some(program) = compile("names", &directory, NAMES, &["-libverbs", "-lrdmacm"]) else {
        return;
    };
    let theirs = succeed(&mut Command::new(&program));
    let ours = succeed(Command::new(RUN).arg(&program));
    assert_eq!(
        String::from_utf8(ours.stdout).unwrap(),
        String::from_utf8(theirs.stdout).unwrap()
    );
    assert_eq!(String::from_utf8(ours.stderr).unwrap(), "");
}
