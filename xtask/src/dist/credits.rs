//! The licences of the packages that are linked into programs and libraries.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use cargo_metadata::{
    DependencyKind, Metadata, MetadataCommand, Node, Package, PackageId, TargetKind,
};

use crate::workspace;

const HEAD: &str =
    "The programs and libraries of dgiwarp contain the Rust standard library (MIT OR Apache-2.0,
https://github.com/rust-lang/rust) and the packages below.
";

/// How names of files with a licence begin.
const LICENCE_FILES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// The packages that these packages of the workspace are linked with, and the texts of their licences, each once.
pub(super) fn text(shipped: &[String]) -> Result<String, Box<dyn Error>> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace::root().join("Cargo.toml"))
        // Without this, packages that only other systems need would be fetched.
        .other_options([
            "--filter-platform".to_owned(),
            format!("{}-unknown-linux-gnu", std::env::consts::ARCH),
        ])
        .exec()?;
    let linked = linked(&metadata, shipped)?;
    let mut text = HEAD.to_owned();
    let mut licences: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in metadata
        .packages
        .iter()
        .filter(|package| package.source.is_some() && linked.contains(&package.id))
    {
        let name = format!("{} {}", package.name, package.version);
        let licence = package.license.as_deref().unwrap_or("see below");
        let place = package.repository.as_deref().unwrap_or("no address given");
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{name}: {licence}\n    {place}");
        for words in texts(package)? {
            licences.entry(words).or_default().insert(name.clone());
        }
    }
    text.push('\n');
    for (words, names) in licences {
        let names: Vec<_> = names.into_iter().collect();
        let _ = write!(
            text,
            "\n{}\n{}\n\n{words}\n",
            "-".repeat(80),
            names.join(", ")
        );
    }
    Ok(text)
}

/// Everything that normal dependencies lead to. Packages that only generate code, such as derive macros, are not
/// linked.
fn linked(metadata: &Metadata, from: &[String]) -> Result<BTreeSet<PackageId>, Box<dyn Error>> {
    let resolve = metadata
        .resolve
        .as_ref()
        .ok_or("cargo did not resolve the dependencies")?;
    let nodes: BTreeMap<&PackageId, &Node> =
        resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let makes_code: BTreeSet<&PackageId> = metadata
        .packages
        .iter()
        .filter(|package| {
            package
                .targets
                .iter()
                .any(|target| target.kind.contains(&TargetKind::ProcMacro))
        })
        .map(|package| &package.id)
        .collect();
    let mut waiting: Vec<&PackageId> = metadata
        .workspace_packages()
        .into_iter()
        .filter(|package| from.iter().any(|name| *name == package.name.as_str()))
        .map(|package| &package.id)
        .collect();
    let mut found = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if makes_code.contains(id) || !found.insert(id.clone()) {
            continue;
        }
        let node = nodes.get(id).ok_or("a package without its dependencies")?;
        let normal = node.deps.iter().filter(|dependency| {
            dependency
                .dep_kinds
                .iter()
                .any(|it| it.kind == DependencyKind::Normal)
        });
        waiting.extend(normal.map(|dependency| &dependency.pkg));
    }
    Ok(found)
}

/// The licences in a package's folder. Of those to choose from, MIT's suffices.
fn texts(package: &Package) -> Result<Vec<String>, Box<dyn Error>> {
    let folder = package.manifest_path.parent().ok_or("no folder")?;
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let upper = name.to_uppercase();
        if LICENCE_FILES.iter().any(|it| upper.starts_with(it)) && entry.file_type()?.is_file() {
            names.push(name);
        }
    }
    let choice = package
        .license
        .as_deref()
        .is_some_and(|it| it.contains("MIT") && !it.contains("AND"));
    let is_mit = |name: &str| name.to_uppercase().contains("MIT");
    if choice && names.iter().any(|name| is_mit(name)) {
        names.retain(|name| is_mit(name) || name.to_uppercase().starts_with("NOTICE"));
    }
    names.sort();
    names
        .iter()
        .map(|name| read(&folder.as_std_path().join(name)))
        .collect()
}

/// A text without the blanks that differ from copy to copy.
fn read(path: &Path) -> Result<String, Box<dyn Error>> {
    let text = fs::read_to_string(path)?;
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    Ok(lines.join("\n").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_linked_is_named_with_a_licence() {
        let text = text(&["dgiwarp-run".to_owned()]).unwrap();
        for name in ["\nlibc ", "\nnix ", "\nclap "] {
            assert!(text.contains(name), "{name}");
        }
        // Only tests use it; it makes code; it is ours.
        for name in ["\nproptest ", "\nthiserror-impl ", "\ndgiwarp"] {
            assert!(!text.contains(name), "{name}");
        }
        assert!(text.contains("Permission is hereby granted"));
    }
}
