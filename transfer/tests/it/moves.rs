//! Trees arrive as they are.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dgiwarp_transfer::disk::{TreeSink, TreeSource};
use dgiwarp_transfer::engine::{Begun, Failure, Next};
use dgiwarp_transfer::wire::Entry;
use dgiwarp_transfer::{Event, Options, Sink, Source, Summary};

use crate::common::{KINDS, Kind, listing, make_tree, place, random, run, small, tree};

#[test]
fn a_tree_arrives_as_it_is_and_is_not_sent_twice() {
    let from = tempfile::tempdir().unwrap();
    make_tree(from.path());
    for kind in KINDS {
        let to = tempfile::tempdir().unwrap();
        let (sent, received, _) = run(kind, tree(from.path()), place(to.path()), small());
        let (sent, received) = (sent.unwrap(), received.unwrap());
        assert_eq!(listing(from.path()), listing(to.path()), "{kind:?}");
        assert_eq!((sent.failed, sent.stored), (0, received.stored));
        assert!(sent.octets > 3_000_000, "{sent:?}");
        let (again, _, _) = run(kind, tree(from.path()), place(to.path()), small());
        let again = again.unwrap();
        assert_eq!((again.octets, again.failed), (0, 0), "{kind:?}");
        assert!(again.present > 150, "{again:?}");
    }
}

#[test]
fn the_smaller_block_length_holds() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("x"), random(1, 5_000_000)).unwrap();
    for (kind, block) in [(Kind::Rc, 1024), (Kind::Tcp, 4 << 20)] {
        let to = tempfile::tempdir().unwrap();
        let options = Options {
            block,
            slots: 3,
            ..small()
        };
        let (sent, received, events) = run(kind, tree(from.path()), place(to.path()), options);
        let Summary { octets, .. } = sent.unwrap();
        assert_eq!((octets, received.unwrap().octets), (5_000_000, 5_000_000));
        let blocks = events
            .iter()
            .filter(|it| matches!(it, Event::Placed { .. }))
            .count();
        assert_eq!(blocks, 5_000_000_usize.div_ceil(block as usize));
        assert_eq!(fs::read(to.path().join("x")).unwrap(), random(1, 5_000_000));
    }
}

/// Blocks of files and packed ones, read to a slot or beside it, in turns of several sizes.
#[test]
fn on_one_host_blocks_are_copied_to_memory_of_the_sink() {
    let from = tempfile::tempdir().unwrap();
    make_tree(from.path());
    fs::write(from.path().join("long"), random(1, 20_000_001)).unwrap();
    for (kind, maps) in [(Kind::Rc, true), (Kind::Tcp, false)] {
        let to = tempfile::tempdir().unwrap();
        let (sent, received, _) = run(kind, tree(from.path()), place(to.path()), small());
        let (sent, received) = (sent.unwrap(), received.unwrap());
        assert_eq!(listing(from.path()), listing(to.path()), "{kind:?}");
        assert_eq!((sent.failed, sent.repeated, received.mapped), (0, 0, 0));
        assert_eq!(sent.mapped > 1_000_000, maps, "{kind:?}: {sent:?}");
    }
}

/// An end whose files take their time.
#[derive(Debug)]
struct Slow<T>(Older<T>);

const PAUSE: Duration = Duration::from_millis(20);

impl Source for Slow<TreeSource> {
    fn next(&self, file: u32) -> Next {
        self.0.next(file)
    }

    fn read(&self, file: u32, offset: u64, octets: &mut [u8]) -> Result<(), Failure> {
        thread::sleep(PAUSE);
        self.0.read(file, offset, octets)
    }

    fn check(&self, file: u32) -> Result<(), Failure> {
        self.0.check(file)
    }

    fn close(&self, file: u32) {
        self.0.close(file);
    }
}

impl Sink for Slow<TreeSink> {
    fn begin(&self, file: u32, entry: &Entry, block: u32) -> Result<Begun, Failure> {
        self.0.begin(file, entry, block)
    }

    fn write(&self, file: u32, offset: u64, octets: &[u8]) -> Result<(), Failure> {
        thread::sleep(PAUSE);
        self.0.write(file, offset, octets)
    }

    fn sync(&self, file: u32, blocks: &[(u64, [u8; 32])]) -> Result<(), Failure> {
        self.0.sync(file, blocks)
    }

    fn finish(&self, file: u32, root: &[u8; 32]) -> Result<(), Failure> {
        self.0.finish(file, root)
    }

    fn abandon(&self, file: u32, keep: bool) {
        self.0.abandon(file, keep);
    }
}

#[test]
fn the_end_whose_disk_is_slow_is_found_by_both() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("x"), random(1, 10_000_000)).unwrap();
    for kind in KINDS {
        for slow_source in [true, false] {
            let to = tempfile::tempdir().unwrap();
            let source: Arc<dyn Source> = match tree(from.path()) {
                source if slow_source => Arc::new(Slow(Older(source))),
                source => source,
            };
            let sink: Arc<dyn Sink> = match place(to.path()) {
                sink if slow_source => sink,
                sink => Arc::new(Slow(Older(sink))),
            };
            let (sent, received, _) = run(kind, source, sink, small());
            let (sent, received) = (sent.unwrap().waits, received.unwrap().waits);
            let (slow, other) = if slow_source {
                (sent, received)
            } else {
                (received, sent)
            };
            let what = format!("{kind:?}, slow source {slow_source}: {slow:?} {other:?}");
            // Pauses of both threads take this long.
            assert!(slow.disk > 70 * PAUSE / 2, "{what}");
            assert!(slow.disk > slow.total() / 2, "{what}");
            assert!(other.peer > other.total() / 2, "{what}");
        }
    }
}

/// Ends that do not pack, as older peers.
#[derive(Debug)]
struct Older<T>(Arc<T>);

impl Source for Older<TreeSource> {
    fn next(&self, file: u32) -> Next {
        self.0.next(file)
    }

    fn read(&self, file: u32, offset: u64, octets: &mut [u8]) -> Result<(), Failure> {
        self.0.read(file, offset, octets)
    }

    fn check(&self, file: u32) -> Result<(), Failure> {
        self.0.check(file)
    }

    fn close(&self, file: u32) {
        self.0.close(file);
    }
}

impl Sink for Older<TreeSink> {
    fn begin(&self, file: u32, entry: &Entry, block: u32) -> Result<Begun, Failure> {
        self.0.begin(file, entry, block)
    }

    fn write(&self, file: u32, offset: u64, octets: &[u8]) -> Result<(), Failure> {
        self.0.write(file, offset, octets)
    }

    fn sync(&self, file: u32, blocks: &[(u64, [u8; 32])]) -> Result<(), Failure> {
        self.0.sync(file, blocks)
    }

    fn finish(&self, file: u32, root: &[u8; 32]) -> Result<(), Failure> {
        self.0.finish(file, root)
    }

    fn abandon(&self, file: u32, keep: bool) {
        self.0.abandon(file, keep);
    }
}

#[test]
fn an_older_peer_gets_and_sends_files_one_by_one() {
    let from = tempfile::tempdir().unwrap();
    make_tree(from.path());
    for (older_source, older_sink) in [(true, false), (false, true)] {
        let to = tempfile::tempdir().unwrap();
        let source: Arc<dyn Source> = match tree(from.path()) {
            source if older_source => Arc::new(Older(source)),
            source => source,
        };
        let sink: Arc<dyn Sink> = match place(to.path()) {
            sink if older_sink => Arc::new(Older(sink)),
            sink => sink,
        };
        let (sent, received, _) = run(Kind::Tcp, source, sink, small());
        let (sent, received) = (sent.unwrap(), received.unwrap());
        assert_eq!(listing(from.path()), listing(to.path()));
        assert_eq!((sent.failed, sent.stored), (0, received.stored));
    }
}
