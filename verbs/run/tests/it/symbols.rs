//! The exported symbols compared with those of Debian's libraries.

use crate::common::{library, skip, system_library};
use dgiwarp_verbs::{DV_EXPORTS, EFA_EXPORTS, EXPORTS, UNSUPPORTED};
use object::elf::{FileHeader64, STT_FUNC};
use object::read::elf::{FileHeader, Sym};
use object::{Endianness, SymbolIndex};
use std::collections::BTreeSet;
use std::path::Path;

/// Type and `name@@node` of every symbol that a library defines with a default version.
fn default_versions(path: &Path) -> BTreeSet<(u8, String)> {
    let data = std::fs::read(path).unwrap();
    let data = data.as_slice();
    let header = FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, data).unwrap();
    let symbols = sections
        .symbols(endian, data, object::elf::SHT_DYNSYM)
        .unwrap();
    let versions = sections
        .versions(endian, data)
        .unwrap()
        .expect("the library has no symbol versions");
    let mut found = BTreeSet::new();
    for (index, symbol) in symbols.enumerate() {
        // Debian's linker defines the version nodes themselves as absolute symbols.
        if symbol.is_undefined(endian) || symbol.is_absolute(endian) {
            continue;
        }
        let index = versions.version_index(endian, SymbolIndex(index.0));
        let Some(version) = versions.version(index).unwrap() else {
            continue;
        };
        if !index.is_hidden() {
            let name = String::from_utf8_lossy(symbol.name(endian, symbols.strings()).unwrap())
                .into_owned();
            found.insert((
                symbol.st_type(),
                format!("{name}@@{}", String::from_utf8_lossy(version.name())),
            ));
        }
    }
    found
}

#[test]
fn symbols_are_those_of_debians_libraries_and_our_own() {
    let mut theirs = BTreeSet::new();
    for (soname, release) in [
        ("libibverbs.so.1", "libibverbs.so.1.14.44"),
        ("librdmacm.so.1", "librdmacm.so.1.3.44"),
        ("libefa.so.1", "libefa.so.1.2.44"),
    ] {
        let Some(path) = system_library("symbols", soname) else {
            return;
        };
        let real = path.canonicalize().unwrap();
        if !real.to_string_lossy().contains(release) {
            return skip(
                "symbols",
                &format!("{} is not of rdma-core 44", real.display()),
            );
        }
        theirs.extend(default_versions(&real));
    }
    let mut ours = default_versions(&library());
    let all = ours.len();
    ours.retain(|(_, symbol)| !symbol.ends_with("@@DGIWARP_1.0"));
    assert_eq!(all - ours.len(), DV_EXPORTS.len());
    // Of rdma-core 65.
    let newer = ["repoll_create", "repoll_ctl", "repoll_wait"];
    theirs.extend(newer.map(|name| (STT_FUNC, format!("{name}@@RDMACM_1.5"))));
    let missing: Vec<_> = theirs.difference(&ours).collect();
    let surplus: Vec<_> = ours.difference(&theirs).collect();
    assert!(
        missing.is_empty() && surplus.is_empty(),
        "missing: {missing:?}\nsurplus: {surplus:?}"
    );
    assert_eq!(ours.len(), 223);
}

#[test]
fn our_own_functions_are_those_of_our_header() {
    let header = include_str!("../../../include/infiniband/dgiwarpdv.h");
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| line.starts_with("DGIWARPDV_API "))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .collect();
    let exported: BTreeSet<&str> = DV_EXPORTS.iter().map(|export| export.name).collect();
    assert_eq!(exported, declared);
    let manual = include_str!("../../../man/dgiwarpdv.7");
    let explained: BTreeSet<&str> = manual
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("dgiwarpdv_"))
        .collect();
    let missing: Vec<_> = exported.difference(&explained).collect();
    assert!(missing.is_empty(), "not in the manual page: {missing:?}");
    assert!(DV_EXPORTS.iter().all(|export| export.node == "DGIWARP_1.0"));
}

#[test]
fn the_tables_name_every_exported_function_once() {
    let tables = EXPORTS
        .iter()
        .chain(UNSUPPORTED)
        .chain(DV_EXPORTS)
        .chain(EFA_EXPORTS);
    let rows: Vec<(u8, String)> = tables
        .map(|export| (STT_FUNC, format!("{}@@{}", export.name, export.node)))
        .collect();
    let listed: BTreeSet<_> = rows.iter().cloned().collect();
    assert_eq!(listed.len(), rows.len(), "a function is listed twice");
    let mut exported = default_versions(&library());
    exported.retain(|(kind, _)| *kind == STT_FUNC);
    assert_eq!(listed, exported);
}
