//! Sizes of files and folders, and circles of imports, as CONTRIBUTING.md has them.
//!
//! Present offenders are listed with their size, over which they do not grow. An entry that is needed no more fails the test.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::{Module, circles};
use super::tree::{self, File};
use super::{assert_none, imports};

/// Lines of code that a file may have, without its tests, blank lines and comments.
const LINES: usize = 600;
const LONGER: &[(&str, usize)] = &[];

/// Files that a folder below `src` may have side by side.
const SIDE_BY_SIDE: usize = 14;
const WIDER: &[(&str, usize)] = &[];

/// Files that may import each other in a circle.
const CIRCLE: usize = 3;
/// Source folders that are checked.
const CHECKED: [&str; 10] = [
    "codec/src",
    "ddp/src",
    "llp-tcp-mpa/src",
    "llp-udp/src",
    "memory/src",
    "rdmap/src",
    "ripc/src",
    "stack/engine/src",
    "stack/src",
    "verbs/src",
];
/// Files in larger circles, of all such circles of a folder together.
const IN_CIRCLES: &[(&str, usize)] = &[];

/// Fails for each size over the limit, or over that of its entry, and for each entry that is not needed.
fn hold(rule: &str, limit: usize, sizes: &BTreeMap<String, usize>, listed: &[(&str, usize)]) {
    let entry = |path: &str| listed.iter().find(|(of, _)| *of == path);
    let mut wrong: Vec<_> = sizes
        .iter()
        .filter(|(path, size)| **size > entry(path).map_or(limit, |(_, listed)| *listed))
        .map(|(path, size)| format!("{path}: {size}"))
        .collect();
    for (path, _) in listed {
        if sizes.get(*path).is_none_or(|size| *size <= limit) {
            wrong.push(format!("{path} needs its entry no more"));
        }
    }
    assert_none(rule, &wrong);
}

/// Whether the whole file is compiled for tests alone.
fn is_test(path: &str) -> bool {
    let stem = path.trim_end_matches(".rs").rsplit('/').next();
    path.contains("/tests/")
        || path.contains("/simulation")
        || stem.is_some_and(|stem| {
            stem == "tests" || stem.ends_with("_tests") || stem == "interleavings"
        })
}

/// Product sources: files below a folder `src`.
fn sources() -> impl Iterator<Item = File> {
    let files = tree::rust_files().into_iter();
    files.filter(|file| file.path.contains("/src/"))
}

fn code_lines(text: &str) -> usize {
    imports::without_tests(text)
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

#[test]
fn no_file_has_too_much_code() {
    let sizes = sources()
        .filter(|file| !is_test(&file.path))
        .map(|file| (code_lines(&file.text), file.path))
        .map(|(lines, path)| (path, lines))
        .collect();
    hold("files with over 600 lines of code", LINES, &sizes, LONGER);
}

#[test]
fn no_folder_has_too_many_files() {
    let mut sizes = BTreeMap::new();
    for file in sources() {
        let (folder, _) = file.path.rsplit_once('/').unwrap();
        *sizes.entry(folder.to_owned()).or_default() += 1;
    }
    let rule = "folders with over 14 files side by side";
    hold(rule, SIDE_BY_SIDE, &sizes, WIDER);
}

#[test]
fn no_circle_of_imports_is_large() {
    let mut sizes = BTreeMap::new();
    for folder in CHECKED {
        let modules: Vec<_> = sources()
            .filter(|file| file.is_in(folder) && !is_test(&file.path))
            .map(|file| Module::read(&file.path[folder.len() + 1..], &file.text))
            .collect();
        assert!(!modules.is_empty(), "{folder}");
        let large = circles(&modules);
        let large = large.iter().filter(|circle| circle.len() > CIRCLE);
        let files = large.inspect(|circle| println!("{folder}: {circle:?}"));
        sizes.insert(folder.to_owned(), files.map(BTreeSet::len).sum());
    }
    hold("files in circles of more than 3", 0, &sizes, IN_CIRCLES);
}

/// The name of a file's module and the files that may declare it; `None` for the root of a crate.
fn declared_in(path: &str) -> Option<(&str, [String; 4])> {
    let (folder, file) = path.rsplit_once('/')?;
    let stem = file.strip_suffix(".rs")?;
    let (stem, folder) = match stem {
        "lib" | "main" | "build" => return None,
        "mod" => folder.rsplit_once('/').map(|(above, name)| (name, above))?,
        _ => (stem, folder),
    };
    let roots = ["tests", "bin", "examples", "benches", "fuzz_targets"];
    let last = folder.rsplit('/').next();
    if !folder.contains("/src/") && last.is_some_and(|last| roots.contains(&last)) {
        return None;
    }
    let parents = ["mod.rs", "lib.rs", "main.rs"].map(|name| format!("{folder}/{name}"));
    let [first, second, third] = parents;
    Some((stem, [first, second, third, format!("{folder}.rs")]))
}

/// A file that no module declares is not compiled, and tests in it pass unseen.
#[test]
fn every_file_is_declared_by_a_module() {
    let files = tree::rust_files();
    let text = |path: &String| {
        files
            .iter()
            .find(|file| file.path == *path)
            .map(|file| file.text.as_str())
    };
    let mut undeclared = Vec::new();
    let mut seen = 0;
    for file in &files {
        let Some((module, parents)) = declared_in(&file.path) else {
            continue;
        };
        let mut parents = parents.iter().filter_map(text).peekable();
        if parents.peek().is_none() {
            continue;
        }
        seen += 1;
        if !parents.any(|text| declares(text, module)) {
            undeclared.push(file.path.clone());
        }
    }
    assert!(seen > 500, "only {seen} files were seen");
    assert_none("files that no module declares", &undeclared);
}

fn declares(text: &str, module: &str) -> bool {
    text.lines().map(str::trim).any(|line| {
        line.strip_suffix(';')
            .and_then(|line| line.rsplit_once("mod "))
            .is_some_and(|(_, name)| name == module)
    })
}

#[test]
fn the_rules_see_what_they_forbid() {
    assert!(declares("pub(crate) mod a;\n", "a") && !declares("// mod a;\nmod ab;\n", "b"));
    assert!(declared_in("a/src/lib.rs").is_none() && declared_in("a/tests/b.rs").is_none());
    assert_eq!(declared_in("a/src/b/mod.rs").map(|it| it.0), Some("b"));
    assert_eq!(declared_in("a/src/b/c.rs").unwrap().1[3], "a/src/b.rs");
    assert!(is_test("a/src/b/tests.rs") && is_test("a/src/b/x_tests.rs"));
    assert!(!is_test("a/src/contests.rs"));
    let text = "// One.\n\nfn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n";
    assert_eq!(code_lines(text), 1);
    let sizes = BTreeMap::from([("a".to_owned(), 5), ("b".to_owned(), 2)]);
    let fails = |listed: &[(&str, usize)]| {
        std::panic::catch_unwind(|| hold("a test of the rule", 3, &sizes, listed)).is_err()
    };
    assert!(!fails(&[("a", 5)]));
    assert!(fails(&[]) && fails(&[("a", 4)]) && fails(&[("a", 5), ("b", 2)]));
}
