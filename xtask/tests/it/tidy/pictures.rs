//! Every picture of the documents is the one that its text makes.

use xtask::{pictures, workspace};

use super::assert_none;
use super::tree;

#[test]
fn every_picture_is_fresh() {
    let all = pictures::all(&workspace::root().join(pictures::FOLDER)).unwrap();
    assert!(all.len() >= 8, "{} pictures", all.len());
    let stale: Vec<_> = all
        .iter()
        .filter(|picture| !picture.is_fresh())
        .map(|picture| picture.path.display().to_string())
        .collect();
    assert_none("pictures that `cargo xtask pictures` would change", &stale);
}

#[test]
fn every_picture_has_a_source_and_is_shown() {
    let all = pictures::all(&workspace::root().join(pictures::FOLDER)).unwrap();
    let drawn: Vec<_> = all
        .iter()
        .filter_map(|picture| picture.path.file_name()?.to_str())
        .collect();
    let files = tree::files();
    let documents: Vec<_> = files
        .iter()
        .filter(|file| file.path.ends_with(".md"))
        .collect();
    let mut wrong = Vec::new();
    for file in &files {
        if file.is_in(pictures::FOLDER) && file.path.ends_with(".svg") {
            let name = file.path.rsplit('/').next().unwrap();
            if !drawn.contains(&name) {
                wrong.push(format!("{}: no source makes it", file.path));
            }
            if !documents
                .iter()
                .any(|document| document.text.contains(name))
            {
                wrong.push(format!("{}: no document shows it", file.path));
            }
        }
    }
    assert_none("pictures nobody draws or sees", &wrong);
}
