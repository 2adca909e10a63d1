//! The documents against what was made: the script for CI runs, and every option that a document names exists.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};
use xtask::lab::Namespace;
use xtask::skips::skip;
use xtask::workspace;

use super::{MADE, have, succeed, text};

/// Documents with commands for users.
const DOCUMENTS: [&str; 3] = ["README.md", "CONTRIBUTING.md", "docs/use"];

/// The script of the book's recipes for CI, on an installation.
#[test]
fn the_script_for_ci_runs() {
    const TEST: &str = "the_script_for_ci_runs";
    let programs = ["ibv_devinfo", "ibv_rc_pingpong", "ibv_ud_pingpong"];
    if !have(TEST, &programs) {
        return;
    }
    let script = workspace::root().join("docs/ci/rdma-test.sh");
    let path = format!(
        "{}:{}",
        MADE.tree.join("bin").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    // The programs' port is free in a network of their own.
    let network = match Namespace::new() {
        Ok(network) => network,
        Err(error) => return skip(TEST, &error.to_string()),
    };
    succeed(network.command("sh").arg(script).env("PATH", path));
}

/// Lines of a document's shell examples, without comments; a line that is continued is one.
fn commands(markdown: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_shell = false;
    for event in Parser::new(markdown) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                in_shell = &*language == "sh";
            }
            Event::End(TagEnd::CodeBlock) => in_shell = false,
            Event::Text(text) if in_shell => {
                let joined = text.replace("\\\n", " ");
                let lines = joined.lines().map(|line| line.split(" #").next().unwrap());
                found.extend(lines.map(|line| line.trim().to_owned()));
            }
            _ => {}
        }
    }
    found
}

/// Programs that a command names, each with its words up to the next pipe, `--` or program.
fn uses(command: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut open = false;
    let mut before = "";
    for word in command.split_whitespace() {
        let name = word.rsplit('/').next().unwrap_or_default();
        // A package of cargo's `-p` need not be a program.
        let is_package = before == "-p" && command.starts_with("cargo ");
        before = word;
        if name.starts_with("dgiwarp-")
            && !word.starts_with('-')
            && !name.contains('.')
            && !is_package
        {
            found.push((name.to_owned(), Vec::new()));
            open = true;
        } else if ["|", "&&", "--", "&", ";"].contains(&word) {
            open = false;
        } else if let (true, Some((_, words))) = (open, found.last_mut()) {
            words.push(word.to_owned());
        }
    }
    found
}

fn documents() -> Vec<String> {
    let root = workspace::root();
    let mut texts = Vec::new();
    for document in DOCUMENTS {
        let path = root.join(document);
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|it| it == "md") {
                    texts.push(fs::read_to_string(path).unwrap());
                }
            }
        } else {
            texts.push(fs::read_to_string(path).unwrap());
        }
    }
    texts
}

/// The long help of a program or of its subcommand.
fn help(program: &Path, subcommand: Option<&str>) -> String {
    let mut command = Command::new(program);
    command.args(subcommand).arg("--help");
    text(&succeed(&mut command))
}

#[test]
fn every_option_in_the_documents_exists() {
    let bin = MADE.tree.join("bin");
    let mut helps: BTreeMap<String, String> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for command in documents().iter().flat_map(|text| commands(text)) {
        for (name, words) in uses(&command) {
            let program = bin.join(&name);
            if !program.exists() {
                wrong.push(format!("{command}: no program {name}"));
                continue;
            }
            // The words behind a program that dgiwarp-run starts are that program's.
            if name == "dgiwarp-run" {
                continue;
            }
            let main = helps
                .entry(name.clone())
                .or_insert_with(|| help(&program, None))
                .clone();
            let first = words.first().filter(|word| !word.starts_with('-'));
            let first = first.filter(|word| {
                main.lines()
                    .any(|line| line.trim_start().starts_with(&format!("{word} ")))
            });
            let all = match first {
                Some(sub) => {
                    let key = format!("{name} {sub}");
                    let sub = helps
                        .entry(key)
                        .or_insert_with(|| help(&program, Some(sub)));
                    format!("{main}{sub}")
                }
                None => main,
            };
            for option in words.iter().filter(|word| word.starts_with('-')) {
                let option = option.split('=').next().unwrap();
                seen += 1;
                let known = option == "-" || all.split([' ', ',', '\n']).any(|word| word == option);
                if !known {
                    wrong.push(format!("{command}: no option {option}"));
                }
            }
        }
    }
    assert!(seen > 15, "{seen} options");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_and_their_programs_are_seen() {
    let found = commands("```sh\na b # c\nd \\\n e\n```\n```c\nf\n```\n");
    assert_eq!(found, ["a b", "d   e"]);
    let found = uses("x | target/release/dgiwarp-perf client --size 1M -- dgiwarp-dump -v y.pcap");
    let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["dgiwarp-perf", "dgiwarp-dump"]);
    assert_eq!(found[0].1, ["client", "--size", "1M"]);
    assert_eq!(found[1].1, ["-v", "y.pcap"]);
}
