//! `transfer` for cargo fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dgiwarp_fuzz_targets::transfer(data));
