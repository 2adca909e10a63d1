//! Extended attributes of files and directories, from one file system to another.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dgiwarp_transfer::engine::{Begun, Failure, Next};
use dgiwarp_transfer::wire::{Entry, FileKind, Status};
use dgiwarp_transfer::{Event, Options, Sink, Source};
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, removexattr, setxattr};

use crate::common::{KINDS, Kind, listing, make_tree, place, random, run, small, tree};

fn set(path: &Path, name: &str, value: &[u8]) {
    setxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// Whether the file system of temporary files has attributes; a test without them is skipped.
fn is_supported(test: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let is_set = setxattr(folder.path(), "user.a", b"1", XattrFlags::empty());
    if is_set.is_err() {
        xtask::skips::skip(test, "the file system has no extended attributes");
    }
    is_set.is_ok()
}

/// Attributes of all that has some, beneath a path and its own.
fn attributes(root: &Path) -> BTreeMap<PathBuf, BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let mut list = vec![0; 64 << 10];
        let octets = llistxattr(&path, &mut list[..]).unwrap();
        let names = list[..octets].split(|it| *it == 0);
        let names = names.map(|it| String::from_utf8(it.to_vec()).unwrap());
        let value = |name: String| {
            let mut value = vec![0; 64 << 10];
            let octets = lgetxattr(&path, &name, &mut value[..]).unwrap();
            value.truncate(octets);
            (name, value)
        };
        let own: BTreeMap<_, _> = names
            .filter(|it| it.starts_with("user."))
            .map(value)
            .collect();
        if !own.is_empty() {
            found.insert(path.strip_prefix(root).unwrap().to_owned(), own);
        }
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
        }
    }
    found
}

/// A tree whose files of all lengths, and directories, have attributes.
fn make_tree_with_attributes(path: &Path) {
    make_tree(path);
    for name in [
        "",
        "a",
        "a/b/c",
        "empty",
        "file 0",
        "a/b/file 2",
        "a/small-7",
    ] {
        set(&path.join(name), "user.comment", name.as_bytes());
    }
    let long = path.join("a/file 5");
    set(&long, "user.empty", b"");
    set(&long, "user.octets", &random(1, 2000));
    set(&long, "user.\u{e4} \u{f6}\n", b"\0\xff");
}

fn counts(events: &[Event]) -> (usize, usize) {
    let is = |wanted| {
        let is =
            move |it: &&Event| matches!(it, Event::Finished { status, .. } if *status == wanted);
        events.iter().filter(is).count()
    };
    (is(Status::Stored), is(Status::Present))
}

#[test]
fn attributes_arrive_and_are_part_of_what_is_the_same() {
    if !is_supported("attributes_arrive_and_are_part_of_what_is_the_same") {
        return;
    }
    let from = tempfile::tempdir().unwrap();
    make_tree_with_attributes(from.path());
    let expected = attributes(from.path());
    assert_eq!(expected.len(), 8);
    let directories = 5;
    for kind in KINDS {
        let to = tempfile::tempdir().unwrap();
        let go = || {
            let (sent, received, events) = run(kind, tree(from.path()), place(to.path()), small());
            assert_eq!(received.unwrap().failed, 0);
            assert_eq!(listing(from.path()), listing(to.path()));
            (sent.unwrap().octets, counts(&events).0)
        };
        assert!(go().0 > 3_000_000);
        assert_eq!(attributes(to.path()), expected, "{kind:?}");
        assert_eq!(go(), (0, directories));
        // Without their contents: one that changed, one that is new, one that is gone, and others that the source has not.
        set(&to.path().join("a/file 5"), "user.octets", b"other");
        set(&to.path().join("a/small-8"), "user.new", b"n");
        removexattr(to.path().join("file 0"), "user.comment").unwrap();
        set(&to.path().join("a/b"), "user.new", b"n");
        set(&to.path().join("a/small-9"), "user.comment", b"");
        assert_eq!(go(), (0, directories + 4));
        assert_eq!(attributes(to.path()), expected, "{kind:?}");
        assert_eq!(go(), (0, directories));
    }
}

/// An end without attributes, as an older peer, or as one that does not pack.
#[derive(Debug)]
struct Plain<T> {
    inner: Arc<T>,
    attributes: bool,
}

impl<T: Source> Source for Plain<T> {
    fn next(&self, file: u32) -> Next {
        self.inner.next(file)
    }

    fn read(&self, file: u32, offset: u64, octets: &mut [u8]) -> Result<(), Failure> {
        self.inner.read(file, offset, octets)
    }

    fn check(&self, file: u32) -> Result<(), Failure> {
        self.inner.check(file)
    }

    fn close(&self, file: u32) {
        self.inner.close(file);
    }

    fn has_attributes(&self) -> bool {
        self.attributes
    }

    fn keep_attributes(&self) {
        self.inner.keep_attributes();
    }
}

impl<T: Sink> Sink for Plain<T> {
    fn begin(&self, file: u32, entry: &Entry, block: u32) -> Result<Begun, Failure> {
        assert_eq!(entry.attributes.is_some(), self.attributes);
        self.inner.begin(file, entry, block)
    }

    fn write(&self, file: u32, offset: u64, octets: &[u8]) -> Result<(), Failure> {
        self.inner.write(file, offset, octets)
    }

    fn sync(&self, file: u32, blocks: &[(u64, [u8; 32])]) -> Result<(), Failure> {
        self.inner.sync(file, blocks)
    }

    fn finish(&self, file: u32, root: &[u8; 32]) -> Result<(), Failure> {
        self.inner.finish(file, root)
    }

    fn abandon(&self, file: u32, keep: bool) {
        self.inner.abandon(file, keep);
    }

    fn has_attributes(&self) -> bool {
        self.attributes
    }
}

#[test]
fn ends_without_attributes_leave_those_of_the_other_end_alone() {
    if !is_supported("ends_without_attributes_leave_those_of_the_other_end_alone") {
        return;
    }
    let from = tempfile::tempdir().unwrap();
    make_tree_with_attributes(from.path());
    for (source_has, sink_has, options_have) in [
        (true, true, true),
        (true, false, true),
        (false, true, true),
        (true, true, false),
    ] {
        let to = tempfile::tempdir().unwrap();
        let source = Plain {
            inner: tree(from.path()),
            attributes: source_has,
        };
        // Its assertion is about the session, not about this end alone.
        let sink: Arc<dyn Sink> = match place(to.path()) {
            sink if source_has && options_have => Arc::new(Plain {
                inner: sink,
                attributes: sink_has,
            }),
            sink => sink,
        };
        let options = Options {
            attributes: options_have,
            ..small()
        };
        let both = source_has && sink_has && options_have;
        let (sent, _, _) = run(Kind::Tcp, Arc::new(source), sink, options);
        assert_eq!(sent.unwrap().failed, 0);
        assert_eq!(listing(from.path()), listing(to.path()));
        let expected = if both {
            attributes(from.path())
        } else {
            BTreeMap::new()
        };
        assert_eq!(attributes(to.path()), expected);
        // A further copy without them does not remove any.
        set(&to.path().join("a"), "user.own", b"1");
        set(&to.path().join("a/small-1"), "user.own", b"1");
        let without = Options {
            attributes: false,
            ..small()
        };
        let (sent, _, _) = run(Kind::Tcp, tree(from.path()), place(to.path()), without);
        assert_eq!(sent.unwrap().failed, 0);
        let there = attributes(to.path());
        assert!(there[Path::new("a")].contains_key("user.own"));
        assert!(there.contains_key(Path::new("a/small-1")));
    }
}

/// Attributes for which there is no room fail their file before any of it is sent, and nothing is under its name.
#[test]
fn attributes_without_room_fail_their_entries() {
    let from = tempfile::tempdir().unwrap();
    for (name, length) in [("short", 10), ("long", 3_000_000), ("good", 10)] {
        fs::write(from.path().join(name), random(1, length)).unwrap();
    }
    let to = tempfile::tempdir().unwrap();
    let probe = to.path().join("probe");
    fs::write(&probe, "").unwrap();
    let large = vec![7; 60_000];
    let is_set = setxattr(&probe, "user.a", &large, XattrFlags::empty());
    if is_set != Err(rustix::io::Errno::NOSPC) {
        let name = "attributes_without_room_fail_their_entries";
        return xtask::skips::skip(
            name,
            "the file system has room for 60,000 octets, or no attributes",
        );
    }
    fs::remove_file(probe).unwrap();
    let source = Arc::new(Large {
        inner: tree(from.path()),
        value: large,
    });
    let (sent, _, events) = run(Kind::Tcp, source, place(to.path()), small());
    let sent = sent.unwrap();
    assert_eq!((sent.failed, sent.octets), (2, 10), "{events:?}");
    for name in ["short", "long"] {
        let text =
            format!("{name}: no space for the extended attribute user.large of 60000 octets");
        let is_it = |it: &&Event| matches!(it, Event::Finished { status: Status::NoSpace, text: it, .. } if it.starts_with(&text));
        assert_eq!(events.iter().filter(is_it).count(), 1, "{events:?}");
    }
    let names: Vec<_> = fs::read_dir(to.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

/// A source whose files but `good` have an attribute that its own file system may not have room for.
#[derive(Debug)]
struct Large<T> {
    inner: Arc<T>,
    value: Vec<u8>,
}

impl<T: Source> Source for Large<T> {
    fn next(&self, file: u32) -> Next {
        let next = self.inner.next(file);
        let Next::Entry(mut entry) = next else {
            return next;
        };
        if entry.kind == FileKind::File && entry.name != b"good" {
            let attribute = dgiwarp_transfer::wire::Attribute {
                name: b"user.large".to_vec(),
                value: self.value.clone(),
            };
            entry.attributes = dgiwarp_transfer::wire::Attributes::new(vec![attribute]);
        }
        Next::Entry(entry)
    }

    fn read(&self, file: u32, offset: u64, octets: &mut [u8]) -> Result<(), Failure> {
        self.inner.read(file, offset, octets)
    }

    fn check(&self, file: u32) -> Result<(), Failure> {
        self.inner.check(file)
    }

    fn close(&self, file: u32) {
        self.inner.close(file);
    }

    fn has_attributes(&self) -> bool {
        true
    }
}

/// A partial file that another session left with attributes gets those of the source alone, and has them before its name.
#[test]
fn attributes_are_there_before_the_name() {
    if !is_supported("attributes_are_there_before_the_name") {
        return;
    }
    let from = tempfile::tempdir().unwrap();
    let file = from.path().join("x");
    fs::write(&file, random(1, 300_000)).unwrap();
    set(&file, "user.a", b"1");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    let to = tempfile::tempdir().unwrap();
    let part = to.path().join(".x.rftp-part");
    fs::write(&part, "left").unwrap();
    set(&part, "user.old", b"2");
    let source = tree(from.path());
    source.keep_attributes();
    let Next::Entry(entry) = source.next(0) else {
        panic!("no entry")
    };
    let sink = place(to.path());
    let begun = sink.begin(0, &entry, 65_536).unwrap();
    assert!(matches!(begun, Begun::Partial(_)));
    let of = |path: &Path| attributes(path).remove(Path::new(""));
    assert_eq!(of(&part), of(&file));
    sink.write(0, 0, &random(1, 300_000)).unwrap();
    sink.finish(0, &[0; 32]).unwrap();
    assert_eq!(of(&to.path().join("x")), of(&file));
    assert_eq!(listing(from.path()), listing(to.path()));
}
