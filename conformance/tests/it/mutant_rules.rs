//! The table of mutants is complete, and each mutant still applies to the sources.

use std::collections::BTreeSet;

use dgiwarp_conform::cases::Family;

use crate::misbehaving::{FAULTS, datagrams};
use crate::mutants::rules::{self, Mutant};
use crate::mutants::sources;

/// A change of the product that an edit of a mutant hits is a change of that edit too.
#[test]
fn every_mutant_applies() {
    let sources = sources::rust_among(&sources::files());
    let failed = |(file, mutant): &(String, Mutant)| {
        let error = mutant.apply(&sources).err()?;
        Some(format!(
            "conformance/mutants/{file}: {}: {error}\n",
            mutant.name
        ))
    };
    let wrong: String = rules::all_with_files().iter().filter_map(failed).collect();
    assert!(wrong.is_empty(), "{wrong}");
}

/// Mutants over all families of cases, each with its clause and cases that are there. Faults of octets that are sent alone are those of the misbehaving device.
#[test]
fn the_table_is_complete() {
    let cases = dgiwarp_conform::cases::all();
    let (mut names, mut families) = (BTreeSet::new(), BTreeSet::new());
    let mutants = rules::all_with_files();
    assert!(mutants.len() >= 116, "{}", mutants.len());
    for (_, mutant) in &mutants {
        let name = &mutant.name;
        assert!(names.insert(name), "{name} twice");
        assert!(!mutant.fault.is_empty(), "{name}");
        assert!(!mutant.cases.is_empty(), "{name}");
        for id in &mutant.cases {
            let case = cases.iter().find(|case| case.id == id);
            let case = case.unwrap_or_else(|| panic!("{name}: there is no case {id}"));
            families.insert(case.family);
        }
        let is_clause = ["RFC ", "Datagram ", "Reliable "]
            .iter()
            .any(|it| mutant.clause.starts_with(it));
        assert!(is_clause && mutant.clause.contains('§'), "{name}");
    }
    // Rules of a sender are about octets on the wire alone: the misbehaving device breaks them, and no mutant has to.
    for case in cases.iter().filter(|case| case.family != Family::Sent) {
        let family = case.family;
        assert!(families.contains(&family), "no mutant for {family:?}");
    }
}

/// The misbehaving device breaks rules of each layer, and its table names rules and cases that are there.
#[test]
fn the_misbehaving_device_breaks_rules_of_each_layer() {
    let cases = dgiwarp_conform::cases::all();
    let mut prefixes = BTreeSet::new();
    for (fault, findings) in FAULTS.iter().chain(datagrams::FAULTS) {
        assert!(!findings.is_empty(), "{fault}");
        for id in *findings {
            let case = cases.iter().find(|case| case.id == *id);
            let case = case.unwrap_or_else(|| panic!("{fault}: there is no case {id}"));
            if case.family == Family::Sent {
                prefixes.extend(id.split('-').next());
            }
        }
    }
    for layer in [
        "mpa",
        "enhanced",
        "ddp",
        "rdmap",
        "terminate",
        "atomic",
        "immediate",
        "datagram",
        "extension",
        "message",
        "cookie",
        "read",
        "service",
    ] {
        assert!(prefixes.contains(layer), "no fault breaks a rule {layer}-…");
    }
}
