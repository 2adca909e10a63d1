//! A peer is lost in the middle of everything: nothing hangs, and what has a deadline keeps it.
//!
//! The peer is another process, which is killed, stopped, or cut off by its link. Times are taken in the very thread that
//! waits; `punctual` distinguishes a late machine from a late program.

mod peer;
mod punctual;
mod scenes;
mod stage;

use std::env;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::common::{Process, role};
use peer::Remote;
use stage::{Cut, Stage};
use xtask::lab::{Config, Lab, Side};
use xtask::skips;

/// One at a time: what they measure is time.
static ALONE: Mutex<()> = Mutex::new(());

/// Far longer than the scenes take.
const LONG: Duration = Duration::from_secs(120);

fn all_scenes(test: &'static str, cut: Cut) {
    if role().as_deref() == Some("peer") {
        return peer::run();
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    scenes::play(&mut Stage::new(test, cut));
}

#[test]
fn nothing_hangs_when_the_peer_is_killed() {
    all_scenes(here!("nothing_hangs_when_the_peer_is_killed"), Cut::Kill);
}

#[test]
fn nothing_hangs_when_the_peer_is_stopped() {
    all_scenes(here!("nothing_hangs_when_the_peer_is_stopped"), Cut::Stop);
}

#[test]
fn nothing_hangs_when_the_link_goes_down() {
    let name = here!("nothing_hangs_when_the_link_goes_down");
    if role().is_some() {
        return all_scenes(name, Cut::Link);
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(lab) = skips::made(name, Lab::new(&Config::default())) else {
        return;
    };
    let program = env::current_exe().unwrap();
    let at = |side| lab.command(side, &program);
    let mut peer = Process::start_as(at(Side::Client), name, "peer", &[]);
    let remote = Remote::of(&mut peer, Side::Client.address());
    let witness = Process::start_as(at(Side::Server), name, "witness", &remote.variables());
    witness.finish(LONG);
}
