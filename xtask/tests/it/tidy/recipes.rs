//! The recipes for CI in `docs/ci`: shown verbatim in the book, valid, and one set of steps in three formats.
//!
//! `xtask/tests/it/dist.rs` runs their script on an installation.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use saphyr::{LoadableYamlNode, Yaml};
use xtask::workspace;

use super::assert_none;

const PAGE: &str = "docs/use/ci.md";
const FILES: [&str; 4] = ["rdma-test.sh", "github.yml", "gitlab.yml", "Containerfile"];
/// Words that begin a step, each in every recipe.
const STEPS: [&str; 4] = [
    "apt-get install --yes",
    "git clone \"$DGIWARP_REPOSITORY\" dgiwarp-source",
    "git checkout \"$DGIWARP_REVISION\"",
    "cargo xtask install --prefix",
];
/// Debian packages that the script and a program to be compiled need.
const PACKAGES: [&str; 4] = ["gcc", "ibverbs-utils", "libibverbs-dev", "librdmacm-dev"];

fn file(name: &str) -> String {
    fs::read_to_string(workspace::root().join("docs/ci").join(name)).unwrap()
}

fn yaml(text: &str) -> Yaml<'_> {
    let mut documents = Yaml::load_from_str(text).unwrap();
    assert_eq!(documents.len(), 1);
    documents.remove(0)
}

fn get<'a, 'b>(node: &'a Yaml<'b>, key: &str) -> &'a Yaml<'b> {
    node.as_mapping_get(key)
        .unwrap_or_else(|| panic!("no {key}"))
}

fn strings(node: &Yaml<'_>) -> Vec<String> {
    let items = node.as_sequence().unwrap();
    items
        .iter()
        .map(|item| item.as_str().unwrap().to_owned())
        .collect()
}

/// The shell commands of the GitHub workflow's steps.
fn github() -> Vec<String> {
    let text = file("github.yml");
    let workflow = yaml(&text);
    for variable in ["DGIWARP_REPOSITORY", "DGIWARP_REVISION"] {
        assert!(get(get(&workflow, "env"), variable).as_str().is_some());
    }
    let job = get(get(&workflow, "jobs"), "rdma");
    assert!(get(job, "runs-on").as_str().is_some());
    let steps = get(job, "steps").as_sequence().unwrap();
    for step in steps {
        let kinds = ["run", "uses"].map(|key| step.as_mapping_get(key).is_some());
        assert_eq!(kinds.iter().filter(|is| **is).count(), 1, "{step:?}");
    }
    let run = steps.iter().filter_map(|step| step.as_mapping_get("run"));
    run.map(|run| run.as_str().unwrap().to_owned()).collect()
}

/// The shell commands of the GitLab job.
fn gitlab() -> Vec<String> {
    let text = file("gitlab.yml");
    let job = yaml(&text);
    let job = get(&job, "rdma");
    assert!(get(job, "image").as_str().is_some());
    for variable in ["DGIWARP_REPOSITORY", "DGIWARP_REVISION"] {
        assert!(get(get(job, "variables"), variable).as_str().is_some());
    }
    let mut commands = strings(get(job, "before_script"));
    commands.extend(strings(get(job, "script")));
    commands
}

/// The shell commands of a Containerfile.
fn container(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let run = joined.lines().filter_map(|line| line.strip_prefix("RUN "));
    run.map(str::to_owned).collect()
}

fn recipes() -> [(&'static str, Vec<String>); 3] {
    [
        ("github.yml", github()),
        ("gitlab.yml", gitlab()),
        ("Containerfile", container(&file("Containerfile"))),
    ]
}

#[test]
fn the_page_shows_the_files() {
    let page = fs::read_to_string(workspace::root().join(PAGE)).unwrap();
    let wrong: Vec<_> = FILES
        .iter()
        .filter(|name| !page.contains(&format!("\n{}```\n", file(name))))
        .map(|name| format!("docs/ci/{name}"))
        .collect();
    assert_none("files that docs/use/ci.md does not show verbatim", &wrong);
}

#[test]
fn every_recipe_has_every_step_and_ends_with_the_script() {
    let mut wrong = Vec::new();
    for (name, commands) in recipes() {
        let all = commands.join("\n");
        for step in STEPS.iter().filter(|step| !all.contains(**step)) {
            wrong.push(format!("{name}: no {step}"));
        }
        let install = all.lines().find(|line| line.contains("apt-get install"));
        let packages: Vec<_> = install.unwrap_or_default().split_whitespace().collect();
        for package in PACKAGES.iter().filter(|it| !packages.contains(*it)) {
            wrong.push(format!("{name}: no package {package}"));
        }
        if all.lines().last().map(str::trim) != Some("sh ci/rdma-test.sh") {
            wrong.push(format!("{name}: the last command is not the script"));
        }
    }
    assert_none("recipes", &wrong);
}

#[test]
fn every_command_is_a_shells() {
    let mut wrong = Vec::new();
    let mut texts = vec![("rdma-test.sh", file("rdma-test.sh"))];
    for (name, commands) in recipes() {
        texts.extend(commands.into_iter().map(|command| (name, command)));
    }
    for (name, text) in texts {
        let mut shell = Command::new("sh")
            .arg("-n")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        drop(input);
        if !shell.wait().unwrap().success() {
            wrong.push(format!("{name}: {text}"));
        }
    }
    assert_none("commands that a shell does not parse", &wrong);
}

#[test]
fn every_program_and_setting_of_the_recipes_exists() {
    let metadata = workspace::metadata().unwrap();
    let targets: Vec<_> = metadata
        .packages
        .iter()
        .flat_map(|package| &package.targets)
        .map(|target| target.name.clone())
        .collect();
    let settings = fs::read_to_string(workspace::root().join("docs/use/settings.md")).unwrap();
    let mut wrong = Vec::new();
    for name in FILES {
        for word in file(name).split(|c: char| !(c.is_alphanumeric() || "_-".contains(c))) {
            let program = ["dgiwarp-run", "dgiwarp-info", "dgiwarp-perf"].contains(&word);
            if program && !targets.iter().any(|target| target == word) {
                wrong.push(format!("{name}: no program {word}"));
            }
            let own = ["DGIWARP_REPOSITORY", "DGIWARP_REVISION"].contains(&word);
            if word.starts_with("DGIWARP_") && !own && !settings.contains(&format!("`{word}`")) {
                wrong.push(format!("{name}: no setting {word}"));
            }
        }
    }
    assert_none("unknown names in the recipes", &wrong);
}

/// The Containerfile of the repository installs as the recipes do.
#[test]
fn the_repositorys_own_container_installs_alike() {
    let text = fs::read_to_string(workspace::root().join("Containerfile")).unwrap();
    let commands = container(&text).join("\n");
    assert!(commands.contains(STEPS[0]) && commands.contains(STEPS[3]));
    assert!(text.contains("\nCOPY --from=build /opt/dgiwarp /usr/local\n"));
}
