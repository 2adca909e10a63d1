//! Listings: LIST, NLST, MLSD and MLST.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use dgiwarp_transfer::disk::{Metadata, Root};
use dgiwarp_transfer::wire::FileKind;

use crate::path::matches;
use crate::time;

/// Kind of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As `ls -l`.
    Long,
    /// Names.
    Names,
    /// Facts (RFC 3659).
    Facts,
}

/// Writes the listing of a directory, a file, or a pattern in the last component.
pub(super) fn write(
    root: &Root,
    path: &Path,
    form: Form,
    may_write: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let now = now();
    let mut line = |name: &OsStr, metadata: &Metadata, folder: &Path| {
        match form {
            Form::Names => {}
            Form::Long => out.write_all(long(metadata, now).as_bytes())?,
            Form::Facts => {
                let target = match metadata.kind() {
                    Some(FileKind::Link) => root.read_link(&folder.join(name)).ok(),
                    _ => None,
                };
                let facts = facts(metadata, target.as_deref(), may_write);
                out.write_all(facts.as_bytes())?;
                out.write_all(b" ")?;
            }
        }
        out.write_all(&clean(name))?;
        if form == Form::Long && metadata.kind() == Some(FileKind::Link) {
            let target = root.read_link(&folder.join(name)).unwrap_or_default();
            out.write_all(b" -> ")?;
            out.write_all(&clean(&target))?;
        }
        out.write_all(b"\r\n")
    };
    let pattern = path.file_name().map(OsStr::as_bytes).unwrap_or_default();
    let is_pattern = form != Form::Facts && pattern.iter().any(|it| b"*?".contains(it));
    if is_pattern && root.metadata(path).is_err() {
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        for (name, metadata) in root.list(folder)? {
            let hidden = name.as_bytes().starts_with(b".") && !pattern.starts_with(b".");
            if !hidden && matches(pattern, name.as_bytes()) {
                line(&name, &metadata, folder)?;
            }
        }
        return Ok(());
    }
    let metadata = root.metadata(path)?;
    if metadata.kind() == Some(FileKind::Directory) {
        for (name, metadata) in root.list(path)? {
            line(&name, &metadata, path)?;
        }
        return Ok(());
    }
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    line(path.file_name().unwrap_or_default(), &metadata, folder)
}

/// Facts of one file (RFC 3659), with a `;` behind each.
pub(super) fn facts(metadata: &Metadata, target: Option<&OsStr>, may_write: bool) -> String {
    // As lftp and other clients and servers have it; a `;` would end the fact.
    let link = target.map(|it| {
        let target = String::from_utf8_lossy(&clean(it)).replace(';', "?");
        format!("OS.unix=slink:{target}")
    });
    let (kind, perm) = match (metadata.kind(), may_write) {
        (Some(FileKind::Directory), true) => ("dir", "elcmpdf"),
        (Some(FileKind::Directory), false) => ("dir", "el"),
        (Some(FileKind::Link), true) => (link.as_deref().unwrap_or("OS.unix=slink"), "df"),
        (Some(FileKind::Link), false) => (link.as_deref().unwrap_or("OS.unix=slink"), ""),
        (_, true) => ("file", "rawdf"),
        (_, false) => ("file", "r"),
    };
    let modify = time::stamp(metadata.modified());
    let mode = metadata.mode();
    let size = if kind == "file" {
        format!("size={};", metadata.size())
    } else {
        String::new()
    };
    let identity = u128::from_be_bytes(metadata.identity());
    format!(
        "type={kind};{size}modify={modify};perm={perm};UNIX.mode={mode:04o};unique={identity:x};"
    )
}

fn long(metadata: &Metadata, now: i64) -> String {
    let kind = match metadata.kind() {
        Some(FileKind::Directory) => 'd',
        Some(FileKind::Link) => 'l',
        Some(FileKind::File) | None => '-',
    };
    let mode = metadata.mode();
    let bits: String = (0..9)
        .map(|bit| {
            let is_set = mode & (0o400 >> bit) != 0;
            if is_set {
                ['r', 'w', 'x'][bit % 3]
            } else {
                '-'
            }
        })
        .collect();
    let (links, size) = (metadata.links(), metadata.size());
    let date = time::listed(metadata.modified().0, now);
    format!("{kind}{bits} {links:3} ftp      ftp      {size:12} {date} ")
}

/// A name without octets that end a line or reach a terminal.
pub(super) fn clean(name: &OsStr) -> Vec<u8> {
    let octets = name.as_bytes().iter();
    octets
        .map(|it| if it.is_ascii_control() { b'?' } else { *it })
        .collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "an edge: a listing's dates depend on today's"
)]
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |it| i64::try_from(it.as_secs()).unwrap_or(0))
}
