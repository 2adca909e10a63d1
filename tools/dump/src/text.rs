//! Items as lines for people.

use std::io::{self, Write};

use dgiwarp_conform::trace::{Item, SeenDatagram, SeenFpdu, What};
use dgiwarp_conform::wire::datagram::{Datagram, Dropped};

use crate::fields::{self, Fields};

/// The state of an FPDU's CRC.
pub(crate) fn crc(seen: &SeenFpdu<'_>) -> &'static str {
    match (seen.crc, seen.fpdu.crc_is_right) {
        (false, _) => "off",
        (true, true) => "good",
        (true, false) => "BAD",
    }
}

/// The state of a datagram's CRC.
pub(crate) fn crc_of_datagram(seen: &SeenDatagram<'_>) -> &'static str {
    match seen.parsed {
        Err(Dropped::BadCrc { .. }) => "BAD",
        Ok(_) | Err(_) => "good",
    }
}

/// An item in one line.
pub(crate) fn line(item: &Item<'_>) -> String {
    match item.what {
        What::Startup { frame, .. } => frame.to_string(),
        What::Fpdu(seen) => {
            let what = seen.segment.map_or_else(
                || format!("{} octets of ULPDU", seen.fpdu.ulpdu.len()),
                ToString::to_string,
            );
            format!("FPDU at {}: {what}; CRC {}", seen.offset, crc(seen))
        }
        What::Datagram(seen) => {
            let what = match seen.parsed {
                Ok(Datagram::Segment(segment)) => segment.to_string(),
                Ok(Datagram::Exchange(exchange)) => exchange.to_string(),
                Ok(Datagram::Lookup(lookup)) => lookup.to_string(),
                Ok(Datagram::Reliable(reliable)) => reliable.to_string(),
                Err(dropped) => format!("{} octets, {dropped}", seen.octets.len()),
            };
            let comment = seen
                .comment
                .map_or_else(String::new, |text| format!(" [{text}]"));
            format!("{what}; CRC {}{comment}", crc_of_datagram(seen))
        }
        What::Finding(finding) => {
            let rule = finding.rule;
            format!(
                "! {} {} {} ({}): {}",
                rule.clause, rule.keyword, rule.id, rule.says, finding.detail
            )
        }
        What::Unjudged(why) => format!("~ not judged: {why}"),
    }
}

/// All fields of an item.
pub(crate) fn fields(item: &Item<'_>) -> Fields {
    match item.what {
        What::Startup { frame, .. } => fields::of_startup(frame),
        What::Fpdu(seen) => fields::of_fpdu(seen),
        What::Datagram(seen) => fields::of_datagram(seen),
        What::Finding(_) | What::Unjudged(_) => Fields::new(),
    }
}

/// The octets of an item.
pub(crate) fn octets<'a>(item: &Item<'a>) -> &'a [u8] {
    match item.what {
        What::Startup { octets, .. } => octets,
        What::Fpdu(seen) => seen.octets,
        What::Datagram(seen) => seen.octets,
        What::Finding(finding) => &finding.octets,
        What::Unjudged(_) => &[],
    }
}

/// Writes an item.
pub(crate) fn write(
    out: &mut impl Write,
    item: &Item<'_>,
    verbose: bool,
    with_octets: bool,
) -> io::Result<()> {
    let text = line(item);
    match item.what {
        What::Finding(_) | What::Unjudged(_) => writeln!(
            out,
            "    {text} (packet {}, {} > {})",
            item.packet, item.from, item.to
        )?,
        What::Startup { .. } | What::Fpdu(_) | What::Datagram(_) => {
            writeln!(out, "{} {} > {} {text}", time(item.at), item.from, item.to)?;
        }
    }
    if verbose {
        for (name, value) in fields(item) {
            writeln!(out, "    {name} = {value}")?;
        }
    }
    if with_octets {
        dump(out, octets(item))?;
    }
    Ok(())
}

/// Time of day, UTC, in microseconds.
fn time(nanoseconds: u64) -> String {
    let micros = nanoseconds / 1000;
    let seconds = micros / 1_000_000 % 86_400;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!(
        "{hour:02}:{minute:02}:{second:02}.{:06}",
        micros % 1_000_000
    )
}

fn dump(out: &mut impl Write, octets: &[u8]) -> io::Result<()> {
    for (number, row) in octets.chunks(16).enumerate() {
        write!(out, "    {:04x} ", number * 16)?;
        for octet in row {
            write!(out, " {octet:02x}")?;
        }
        let shown = row.iter().map(|octet| match octet {
            b' '..=b'~' => char::from(*octet),
            _ => '.',
        });
        writeln!(
            out,
            "{:width$}  {}",
            "",
            shown.collect::<String>(),
            width = 3 * (16 - row.len())
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_octets_are_shown() {
        assert_eq!(time(1_700_000_000_123_456_789), "22:13:20.123456");
        let mut out = Vec::new();
        dump(&mut out, b"0123456789abcdef\x00z").unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<_> = text.lines().collect();
        assert!(rows[0].ends_with("65 66  0123456789abcdef"), "{text}");
        assert!(
            rows[1].starts_with("    0010  00 7a  ") && rows[1].ends_with("  .z"),
            "{text}"
        );
        assert_eq!(rows[0].find("  01234"), rows[1].find("  .z"));
    }
}
