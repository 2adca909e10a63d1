//! Several connections of one copy.

use std::fs;

use crate::common::{Server, assert_equal, make_tree, octets, rftp, succeed};

#[test]
fn several_streams_carry_one_copy() {
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    make_tree(&tree);
    fs::write(tree.join("larger"), octets(9, 60_000_000)).unwrap();
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &["--write"]);
    for way in [&[][..], &["--tcp"]] {
        let put = ["--streams", "3", "--rewrite", tree.to_str().unwrap()];
        let to = server.url(&format!("{}/", way.len()));
        let said = succeed(rftp(&[way, &put].concat()).arg(to));
        assert!(said.contains(" streams"), "{said}");
        let back = here.path().join(format!("back-{}", way.len()));
        let from = server.url(&format!("{}/tree", way.len()));
        let get = ["--streams", "3", &from, back.to_str().unwrap()];
        let said = succeed(&mut rftp(&[way, &get].concat()));
        assert!(said.contains(" streams"), "{said}");
        assert_equal(&tree, &back);
    }
}
