//! Queue pairs that are connected, reset or destroyed, and processes that end, as C programs written against the installed headers see them.

use crate::common::each::for_each_gid;

#[test]
fn queue_pairs_go_back_to_reset_and_up_again() {
    for_each_gid("reset", include_str!("../c/reset.c"));
}

#[test]
fn a_process_that_sends_and_ends_loses_nothing() {
    for_each_gid("exit", include_str!("../c/exit.c"));
}

#[test]
fn access_flags_bind_the_peer_and_a_queue_pair_may_be_its_own() {
    for_each_gid("access", include_str!("../c/access.c"));
}

#[test]
fn a_send_queue_is_drained_and_goes_on() {
    for_each_gid("drain", include_str!("../c/drain.c"));
}

#[test]
fn a_message_to_a_queue_pair_in_rtr_is_reported() {
    for_each_gid("established", include_str!("../c/established.c"));
}

#[test]
fn polled_completions_free_the_places_of_the_send_queue() {
    for_each_gid("places", include_str!("../c/places.c"));
}
