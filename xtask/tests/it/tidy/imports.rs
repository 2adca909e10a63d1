//! Imports between the files of one crate, and their circles.
//!
//! A name counts for the file that defines it: re-exports are followed, and are no imports themselves.

use std::collections::{BTreeMap, BTreeSet};

/// Path of a module: `["driver", "cq"]`.
type Path = Vec<String>;

/// Depth to which re-exports of re-exports are followed.
const DEPTH: usize = 8;

/// Kinds of items that a path can name.
const ITEMS: [&str; 9] = [
    "struct",
    "enum",
    "union",
    "trait",
    "fn",
    "type",
    "const",
    "static",
    "macro_rules!",
];

/// One file.
pub(crate) struct Module {
    path: Path,
    /// Paths that it names, except in re-exports.
    uses: Vec<Path>,
    /// Paths that it re-exports, by the name that they have here; `*` for all of a module.
    exports: Vec<(String, Path)>,
    items: BTreeSet<String>,
}

/// A text without comments and without the tests at its end.
pub(crate) fn without_tests(text: &str) -> &str {
    let end = text
        .match_indices("#[cfg(test)]\n")
        .find(|(at, attribute)| {
            let rest = &text[at + attribute.len()..];
            let line = rest
                .lines()
                .find(|line| !line.starts_with("#["))
                .unwrap_or("");
            line.starts_with("mod ") && line.ends_with('{')
        })
        .map(|(at, _)| at);
    &text[..end.unwrap_or(text.len())]
}

impl Module {
    /// Of a file, by its path below `src`.
    pub(crate) fn read(file: &str, text: &str) -> Self {
        let stem = file.trim_end_matches(".rs");
        let mut path: Path = stem.split('/').map(str::to_owned).collect();
        if matches!(
            path.last().map(String::as_str),
            Some("mod" | "lib" | "main")
        ) {
            path.pop();
        }
        let code: String = without_tests(text)
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default())
            .collect::<Vec<_>>()
            .join("\n");
        let mut module = Self {
            path,
            uses: Vec::new(),
            exports: Vec::new(),
            items: BTreeSet::new(),
        };
        let mut rest = String::new();
        for statement in code.split(';') {
            let before = match use_of(statement) {
                Some((before, public, tree)) => {
                    module.import(public, tree);
                    before
                }
                None => statement,
            };
            rest.push_str(before);
            rest.push(';');
        }
        module.uses.extend(paths(&rest));
        let words: Vec<_> = rest.split_whitespace().collect();
        for pair in words.windows(2) {
            if ITEMS.contains(&pair[0]) {
                let name = pair[1].split(|c: char| !c.is_alphanumeric() && c != '_');
                module.items.extend(name.take(1).map(str::to_owned));
            }
        }
        module
    }

    fn import(&mut self, public: bool, tree: &str) {
        for (path, name) in leaves(tree) {
            if public {
                self.exports.push((name, path));
            } else {
                self.uses.push(path);
            }
        }
    }
}

/// The code before a `use` at the end of a statement, whether it is a re-export, and its tree.
fn use_of(statement: &str) -> Option<(&str, bool, &str)> {
    let (at, _) = statement.rmatch_indices("use ").find(|(at, _)| {
        let before = &statement[..*at];
        let line = before
            .rsplit(['\n', '}', '{'])
            .next()
            .unwrap_or_default()
            .trim();
        line.is_empty() || line == "pub" || line.starts_with("pub(") && line.ends_with(')')
    })?;
    let tree = &statement[at + "use ".len()..];
    let is_tree = tree.chars().all(|c| {
        c.is_alphanumeric() || c.is_whitespace() || matches!(c, '_' | ':' | '{' | '}' | ',' | '*')
    });
    let before = statement[..at].trim_end();
    let public = ["pub", "pub(crate)", "pub(super)"];
    let public = public.iter().find_map(|word| before.strip_suffix(word));
    is_tree.then_some((public.unwrap_or(before), public.is_some(), tree))
}

/// The paths of a use tree, each with the name that it has afterwards.
fn leaves(tree: &str) -> Vec<(Path, String)> {
    let mut found = Vec::new();
    collect(tree.trim(), &[], &mut found);
    found
}

fn collect(tree: &str, before: &[String], found: &mut Vec<(Path, String)>) {
    if let Some((head, inner)) = tree.split_once('{') {
        let mut path = before.to_vec();
        path.extend(segments(head));
        let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
        let (mut depth, mut start) = (0, 0);
        for (at, c) in inner.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    collect(inner[start..at].trim(), &path, found);
                    start = at + 1;
                }
                _ => {}
            }
        }
        return collect_last(inner[start..].trim(), &path, found);
    }
    collect_last(tree, before, found);
}

fn collect_last(tree: &str, before: &[String], found: &mut Vec<(Path, String)>) {
    if tree.is_empty() {
        return;
    }
    if tree.contains('{') {
        return collect(tree, before, found);
    }
    let (path_text, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
    let mut path = before.to_vec();
    path.extend(segments(path_text));
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let name = match alias.trim() {
        "" => path.last().cloned().unwrap_or_default(),
        alias => alias.to_owned(),
    };
    found.push((path, name));
}

fn segments(text: &str) -> impl Iterator<Item = String> {
    text.split("::")
        .map(str::trim)
        .filter(|segment| !segment.is_empty())
        .map(str::to_owned)
}

/// Paths with `::` in code.
fn paths(code: &str) -> Vec<Path> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
        .filter(|word| word.contains("::"))
        .map(|word| segments(word).collect())
        .collect()
}

/// Files of a crate by module.
struct Crate<'a>(BTreeMap<&'a [String], &'a Module>);

impl Crate<'_> {
    /// The module whose file defines what a path names; `None` outside the crate.
    fn definition(&self, from: &[String], path: &[String], depth: usize) -> Option<Path> {
        let mut rest = path;
        let mut at = from.to_vec();
        match rest.first()?.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
            }
            first => {
                at.push(first.to_owned());
                if !self.0.contains_key(at.as_slice()) {
                    return None;
                }
            }
        }
        rest = &rest[1..];
        while let Some(first) = rest.first() {
            if first == "super" {
                at.pop();
            } else {
                at.push(first.clone());
                if !self.0.contains_key(at.as_slice()) {
                    at.pop();
                    break;
                }
            }
            rest = &rest[1..];
        }
        let (Some(name), Some(module)) = (rest.first(), self.0.get(at.as_slice())) else {
            return Some(at);
        };
        if depth == 0 || module.items.contains(name) {
            return Some(at);
        }
        for (exported, path) in &module.exports {
            let glob = exported == "*";
            if exported != name && !glob {
                continue;
            }
            let mut path = path.clone();
            if glob {
                path.pop();
                path.push(name.clone());
            }
            let found = self.definition(&at, &path, depth - 1);
            let defines = |at: &Path| {
                let module = self.0.get(at.as_slice());
                module.is_some_and(|module| module.items.contains(name))
            };
            if !glob || found.as_ref().is_some_and(defines) {
                return found;
            }
        }
        Some(at)
    }
}

/// Circles of two and more files.
pub(crate) fn circles(modules: &[Module]) -> Vec<BTreeSet<String>> {
    let all = Crate(modules.iter().map(|it| (it.path.as_slice(), it)).collect());
    let edges: BTreeMap<Path, BTreeSet<Path>> = modules
        .iter()
        .map(|module| {
            let to = module
                .uses
                .iter()
                .filter_map(|path| all.definition(&module.path, path, DEPTH))
                .filter(|to| *to != module.path);
            (module.path.clone(), to.collect())
        })
        .collect();
    let reach: BTreeMap<&Path, BTreeSet<&Path>> = edges
        .keys()
        .map(|from| {
            let mut seen = BTreeSet::new();
            let mut left: Vec<&Path> = edges[from].iter().collect();
            while let Some(next) = left.pop() {
                if seen.insert(next) {
                    left.extend(edges.get(next).into_iter().flatten());
                }
            }
            (from, seen)
        })
        .collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (from, to) in &reach {
        let circle: BTreeSet<String> = to
            .iter()
            .filter(|other| reach.get(**other).is_some_and(|back| back.contains(from)))
            .map(|path| path.join("::"))
            .collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<BTreeSet<String>> {
        let modules: Vec<_> = files
            .iter()
            .map(|(path, text)| Module::read(path, text))
            .collect();
        circles(&modules)
    }

    #[test]
    fn circles_are_seen_through_facades() {
        let circle = found(&[
            ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::*;\n"),
            ("a.rs", "use crate::B;\npub struct A(B);\n"),
            (
                "b.rs",
                "use std::fmt;\nuse crate::{A, fmt as other};\npub struct B(A);\n",
            ),
        ]);
        assert_eq!(circle.len(), 1);
        assert_eq!(circle[0].iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_facade_alone_is_no_circle() {
        let none = found(&[
            ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::B;\n"),
            (
                "a.rs",
                "use crate::B;\npub struct A(B);\n#[cfg(test)]\nmod tests {\n    use crate::A;\n}\n",
            ),
            ("b.rs", "// use crate::A;\npub struct B;\n"),
        ]);
        assert_eq!(none.len(), 0, "{none:?}");
    }

    #[test]
    fn inline_paths_count() {
        let circle = found(&[
            ("m/mod.rs", "mod a;\nmod b;\n"),
            ("m/a.rs", "pub(crate) fn a() { super::b::b() }\n"),
            ("m/b.rs", "pub(crate) fn b() { crate::m::a::a() }\n"),
        ]);
        assert_eq!(circle.len(), 1);
    }
}
