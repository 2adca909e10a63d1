//! Trees arrive as they are.

use std::fs;

use dgiwarp_transfer::{Event, Options, Summary};

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
