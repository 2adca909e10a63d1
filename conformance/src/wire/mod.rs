//! Frames as octets. Nothing here refuses to build what a protocol forbids: that is what a tester sends.

pub mod datagram;
pub mod ddp;
pub mod framing;
pub mod reliable;
pub mod startup;

/// Octets as hexadecimal digits, at most `most` of them, and how many there are if that is not all.
#[must_use]
pub fn hex(octets: &[u8], most: usize) -> String {
    use core::fmt::Write as _;
    let mut text = String::new();
    for octet in octets.iter().take(most) {
        // Writing to a String cannot fail.
        let _ = write!(text, "{octet:02x}");
    }
    if octets.len() > most {
        let _ = write!(text, "… ({} octets)", octets.len());
    }
    text
}
