//! An entry point for fuzzers: what a program does with the C ABI. `fuzz/targets` of the source tree gives it to the fuzzers; not part of the API.
//!
//! What the verbs ask of programs is kept: pointers are NULL or valid, objects are alive, inline data is there. Everything else is arbitrary.

mod batches;
mod requests;
mod scene;
mod steps;

use arbitrary::{Result, Unstructured};

use crate::ffi::is_fatal;
use scene::Scene;

/// More would only be slow.
const STEPS: usize = 60;

/// Calls with arbitrary arguments on queue pairs of all kinds. No call panics, octets that nobody registered stay as they are, and at the end every object
/// can be destroyed.
pub fn work_requests(data: &[u8]) {
    run(&mut Unstructured::new(data)).expect("what short inputs lack is zero");
    assert!(!is_fatal(), "a call panicked");
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let mut scene = Scene::new();
    let mut steps = 0;
    while !u.is_empty() && steps < STEPS {
        step(&mut scene, u)?;
        // Most programs look often.
        scene.poll(16);
        scene.poll(17);
        steps += 1;
    }
    scene.destroy();
    Ok(())
}

fn step(scene: &mut Scene, u: &mut Unstructured<'_>) -> Result<()> {
    match u.int_in_range(0..=15u8)? {
        0..=4 => requests::post_send(scene, u),
        5 | 6 => requests::post_receive(scene, u),
        7 | 8 => batches::batch(scene, u),
        9..=11 => {
            scene.poll(u.arbitrary()?);
            Ok(())
        }
        12 => scene.change_state(u),
        13 => scene.window(u),
        14 => scene.region(u),
        _ => scene.other(u),
    }
}
