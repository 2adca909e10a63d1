use super::*;
use tempfile::TempDir;

/// A tree of a program, a link and a document, and an empty prefix.
fn scene() -> (TempDir, PathBuf, Place) {
    let scratch = tempfile::tempdir().unwrap();
    let tree = scratch.path().join("tree");
    fill(&tree, &["bin/program", "share/doc/x/README"]);
    fs::create_dir_all(tree.join("lib")).unwrap();
    symlink("../bin/program", tree.join("lib/link")).unwrap();
    let place = Place::new(&scratch.path().join("prefix"), None).unwrap();
    (scratch, tree, place)
}

fn fill(folder: &Path, files: &[&str]) {
    for file in files {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
}

#[test]
fn what_was_installed_goes_and_nothing_else_does() {
    let (_scratch, tree, place) = scene();
    fill(place.root(), &["bin/theirs", "etc/theirs"]);
    fs::create_dir_all(place.root().join("share/empty")).unwrap();
    assert_eq!(place.install(&tree).unwrap(), 3);
    assert_eq!(
        fs::read_link(place.root().join("lib/link")).unwrap(),
        Path::new("../bin/program")
    );
    assert_eq!(
        contents(place.root()).unwrap().len(),
        6,
        "three, two of theirs, and the list"
    );
    // Somebody puts a file into a folder of ours.
    fill(place.root(), &["share/doc/x/note"]);
    assert_eq!(place.uninstall().unwrap(), 3);
    let left: Vec<_> = ["bin/theirs", "etc/theirs", "share/doc/x/note"]
        .map(PathBuf::from)
        .into();
    assert_eq!(contents(place.root()).unwrap(), left);
    assert!(
        place.root().join("share/empty").is_dir(),
        "it was there before"
    );
    assert!(!place.root().join("lib").exists());
    assert!(matches!(
        place.uninstall(),
        Err(InstallError::NotInstalled(_))
    ));
}

#[test]
fn a_prefix_that_was_made_goes_too() {
    let (_scratch, tree, place) = scene();
    place.install(&tree).unwrap();
    place.uninstall().unwrap();
    assert!(!place.root().exists());
    fs::create_dir(place.root()).unwrap();
    place.install(&tree).unwrap();
    place.uninstall().unwrap();
    assert_eq!(fs::read_dir(place.root()).unwrap().count(), 0);
}

#[test]
fn a_second_installation_takes_the_place_of_the_first() {
    let (_scratch, tree, place) = scene();
    place.install(&tree).unwrap();
    fs::remove_file(tree.join("lib/link")).unwrap();
    fill(&tree, &["include/x.h"]);
    assert_eq!(place.install(&tree).unwrap(), 3);
    assert!(!place.root().join("lib/link").exists());
    assert!(place.root().join("include/x.h").is_file());
    place.uninstall().unwrap();
    assert!(
        !place.root().exists(),
        "folders of both installations are gone"
    );
}

#[test]
fn somebody_else_s_file_is_not_written_over() {
    let (_scratch, tree, place) = scene();
    fill(place.root(), &["bin/program"]);
    fs::write(place.root().join("bin/program"), "theirs").unwrap();
    let error = place.install(&tree).unwrap_err();
    assert!(matches!(error, InstallError::Occupied(_)), "{error}");
    assert_eq!(contents(place.root()).unwrap(), [Path::new("bin/program")]);
    assert_eq!(
        fs::read_to_string(place.root().join("bin/program")).unwrap(),
        "theirs"
    );
}

#[test]
fn a_program_that_runs_keeps_its_file() {
    let (_scratch, tree, place) = scene();
    place.install(&tree).unwrap();
    let held = fs::File::open(place.root().join("bin/program")).unwrap();
    fs::write(tree.join("bin/program"), "new").unwrap();
    place.install(&tree).unwrap();
    assert_eq!(io::read_to_string(held).unwrap(), "bin/program");
    assert_eq!(
        fs::read_to_string(place.root().join("bin/program")).unwrap(),
        "new"
    );
}

#[test]
fn a_list_that_leads_elsewhere_is_not_followed() {
    let (scratch, tree, place) = scene();
    place.install(&tree).unwrap();
    fill(scratch.path(), &["theirs"]);
    for line in [
        "file ../theirs",
        "file /etc/hostname",
        "file ",
        "thing x",
        "file",
    ] {
        fs::write(
            place.root().join(LIST),
            format!("file bin/program\n{line}\n"),
        )
        .unwrap();
        let error = place.uninstall().unwrap_err();
        assert!(
            matches!(error, InstallError::Malformed { line: 2, .. }),
            "{error}"
        );
        assert!(place.root().join("bin/program").exists());
    }
    assert!(scratch.path().join("theirs").exists());
}

#[test]
fn where_nobody_can_write_is_seen_before() {
    // Nobody can make files there, not even root.
    let place = Place::new(Path::new("/proc/dgiwarp"), None).unwrap();
    let error = place.check().unwrap_err().to_string();
    assert!(error.starts_with("cannot write to /proc: "), "{error}");
    assert!(error.contains("--prefix"), "{error}");
    assert!(Place::new(Path::new("usr"), None).is_err());
    let (scratch, ..) = scene();
    let place = Place::new(Path::new("/usr/local"), Some(scratch.path())).unwrap();
    assert_eq!(place.root(), scratch.path().join("usr/local"));
    place.check().unwrap();
    assert_eq!(
        Place::new(Path::new("/usr"), Some(Path::new("")))
            .unwrap()
            .root(),
        Path::new("/usr")
    );
}
