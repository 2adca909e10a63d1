//! Entry point for fuzzers: calls of a program on the C ABI. `fuzz/targets` of the source tree passes it to the
//! fuzzers; not part of the API.
//!
//! The contract of verbs is kept: pointers are NULL or valid, objects are live, inline data is readable. Everything
//! else is arbitrary.

mod batches;
mod requests;
mod scene;
mod steps;

use arbitrary::{Result, Unstructured};

use crate::ffi::is_fatal;
use scene::Scene;

/// Steps of one input at most.
const STEPS: usize = 60;

/// Calls with arbitrary arguments on queue pairs of every type. No call panics, unregistered octets keep their values,
/// and every object can be destroyed at the end.
pub fn work_requests(data: &[u8]) {
    run(&mut Unstructured::new(data)).expect("what short inputs lack is zero");
    assert!(!is_fatal(), "a call panicked");
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let mut scene = Scene::new();
    let mut steps = 0;
    while !u.is_empty() && steps < STEPS {
        step(&mut scene, u)?;
        // Most programs poll often.
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
