//! The mutants of `conformance/mutants/*.toml`, and their edits applied to sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use super::sources::{Sources, root};
use super::text::Normalized;

/// A device with one fault on purpose.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    pub(crate) name: String,
    /// The fault, as a predicate whose subject is the device.
    pub(crate) fault: String,
    /// The clause that the fault violates.
    pub(crate) clause: String,
    /// Cases of the tester, each of which finds the fault.
    pub(crate) cases: Vec<String>,
    /// Variables of the device's environment.
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    #[serde(rename = "edit")]
    edits: Vec<Edit>,
}

/// A place in the sources.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    /// Folder whose `src` trees have the place.
    folder: String,
    /// Text that occurs exactly once in these trees. White space does not count.
    find: String,
    replace: String,
}

#[derive(Deserialize)]
struct File {
    mutant: Vec<Mutant>,
}

/// All mutants with the names of their files, in the order of the files.
pub(crate) fn all_with_files() -> Vec<(String, Mutant)> {
    let folder = root().join("conformance/mutants");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "toml"))
        .collect();
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        let file: File = toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        all.extend(file.mutant.into_iter().map(|mutant| (name.clone(), mutant)));
    }
    all
}

impl Mutant {
    /// The files that differ in this mutant, with its edits.
    ///
    /// # Errors
    /// The edit that does not apply, and why.
    pub(crate) fn apply(&self, sources: &Sources) -> Result<Sources, String> {
        let mut changed = Sources::new();
        for edit in &self.edits {
            let (path, text) = edit.apply(sources, &changed)?;
            changed.insert(path, text);
        }
        Ok(changed)
    }
}

impl Edit {
    /// The file after this edit. `changed` are files after earlier edits.
    fn apply(&self, sources: &Sources, changed: &Sources) -> Result<(PathBuf, Normalized), String> {
        let wrong = |reason: &str| {
            let Self { folder, find, .. } = self;
            Err(format!("{reason} in the src trees of {folder}/:\n{find}"))
        };
        let wanted = Normalized::of(self.find.clone());
        if !wanted.differs_from(&Normalized::of(self.replace.clone())) {
            return wrong("the replacement is the text itself");
        }
        let mut found = Vec::new();
        for (path, original) in sources {
            if path.starts_with(&self.folder) {
                let text = changed.get(path).unwrap_or(original);
                let places = text.find(&wanted).into_iter();
                found.extend(places.map(|place| (path, text.original(), place)));
            }
        }
        match found.as_slice() {
            [(path, text, place)] => {
                let (before, after) = (&text[..place.start], &text[place.end..]);
                let edited = format!("{before}{}{after}", self.replace);
                Ok((path.to_path_buf(), Normalized::of(edited)))
            }
            [] => wrong("this text is not found"),
            several => {
                let paths: Vec<_> = several.iter().map(|(path, ..)| path.display()).collect();
                wrong(&format!("this text is found several times ({paths:?})"))
            }
        }
    }
}
