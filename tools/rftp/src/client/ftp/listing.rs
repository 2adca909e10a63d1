//! Replies and listings of servers, which may hold anything.

use std::collections::HashSet;

use crate::time;

/// Kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    /// A symbolic link with its target; empty where the server does not name it.
    Link(Vec<u8>),
    /// The directory that is listed, or the one above it.
    Itself,
    /// Neither.
    Other,
}

/// Description of an entry, as far as the server gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) kind: Kind,
    pub(super) size: Option<u64>,
    pub(super) modified: Option<(i64, u32)>,
    pub(super) mode: Option<u16>,
    /// Changes when the file is another one.
    pub(super) unique: Vec<u8>,
}

impl Facts {
    pub(super) fn of(kind: Kind) -> Self {
        Self {
            kind,
            size: None,
            modified: None,
            mode: None,
            unique: Vec::new(),
        }
    }
}

/// A line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// An entry.
    Entry(Facts, Vec<u8>),
    /// None.
    Nothing,
    /// A form that is not known.
    Strange,
}

/// Facts and name of a line of MLSD or MLST (RFC 3659).
pub(super) fn facts(line: &[u8]) -> Option<(Facts, Vec<u8>)> {
    let at = line.iter().position(|it| *it == b' ')?;
    let (list, name) = line.split_at(at);
    let mut facts = Facts::of(Kind::Other);
    let mut is_typed = false;
    for fact in list.split(|it| *it == b';').filter(|it| !it.is_empty()) {
        let at = fact.iter().position(|it| *it == b'=')?;
        let (key, value) = (fact[..at].to_ascii_lowercase(), &fact[at + 1..]);
        let text = std::str::from_utf8(value).unwrap_or_default();
        match &key[..] {
            b"type" => {
                facts.kind = kind(value);
                is_typed = true;
            }
            b"size" => facts.size = text.parse().ok(),
            b"modify" => facts.modified = time::parse(text),
            b"unix.mode" => facts.mode = u16::from_str_radix(text, 8).ok(),
            b"unique" => facts.unique = value.to_vec(),
            _ => {}
        }
    }
    is_typed.then(|| (facts, name[1..].to_vec()))
}

fn kind(value: &[u8]) -> Kind {
    let lower = value.to_ascii_lowercase();
    match &lower[..] {
        b"file" => Kind::File,
        b"dir" => Kind::Directory,
        b"cdir" | b"pdir" => Kind::Itself,
        _ if lower.starts_with(b"os.unix=slink") || lower == b"os.unix=symlink" => {
            let colon = value.iter().position(|it| *it == b':');
            Kind::Link(colon.map_or_else(Vec::new, |at| value[at + 1..].to_vec()))
        }
        _ => Kind::Other,
    }
}

/// A line of MLSD.
pub(super) fn machine(line: &[u8]) -> Line {
    match facts(line) {
        Some((facts, _)) if facts.kind == Kind::Itself => Line::Nothing,
        Some((facts, name)) => Line::Entry(facts, name),
        None if line.is_empty() => Line::Nothing,
        None => Line::Strange,
    }
}

/// A line of LIST in the form of `ls -l`: `-rw-r--r-- 1 user group 12 Nov 28 09:30 name`, also without the group. Its time is not exact, and left out.
pub(super) fn long(line: &[u8]) -> Line {
    if line.is_empty() || line.starts_with(b"total ") {
        return Line::Nothing;
    }
    let Some((fields, name)) = fields(line) else {
        return Line::Strange;
    };
    let bits = fields[0];
    let size = fields[fields.len() - 4];
    let size = std::str::from_utf8(size)
        .ok()
        .and_then(|it| it.parse().ok());
    let (kind, name) = match bits.first() {
        Some(b'-') => (Kind::File, name),
        Some(b'd') => (Kind::Directory, name),
        Some(b'l') => match name.windows(4).position(|it| it == b" -> ") {
            Some(at) => (Kind::Link(name[at + 4..].to_vec()), &name[..at]),
            None => (Kind::Other, name),
        },
        _ => (Kind::Other, name),
    };
    if name == b"." || name == b".." {
        return Line::Nothing;
    }
    let mode = bits.get(1..10).map(|bits| {
        let is_set = |it: &u8| matches!(it, b'r' | b'w' | b'x' | b's' | b't');
        bits.iter()
            .fold(0, |mode, it| mode << 1 | u16::from(is_set(it)))
    });
    let facts = Facts {
        size,
        mode,
        ..Facts::of(kind)
    };
    Line::Entry(facts, name.to_vec())
}

/// Fields before the name, whose last three are a date, and the name.
fn fields(line: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    const MONTHS: [&[u8]; 12] = [
        b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov",
        b"dec",
    ];
    if !line.first().is_some_and(|it| b"-dlbcps".contains(it)) {
        return None;
    }
    let mut fields: Vec<&[u8]> = Vec::new();
    let mut rest = line;
    while fields.len() < 9 {
        let begin = rest.iter().position(|it| *it != b' ')?;
        let end = rest[begin..].iter().position(|it| *it == b' ')? + begin;
        fields.push(&rest[begin..end]);
        rest = &rest[end..];
        let [.., size, month, day, time] = fields[..] else {
            continue;
        };
        let is_number = |it: &[u8]| it.iter().all(u8::is_ascii_digit);
        let is_date = MONTHS.contains(&&month.to_ascii_lowercase()[..])
            && is_number(day)
            && time.iter().all(|it| it.is_ascii_digit() || *it == b':');
        if is_date && is_number(size) && fields.len() >= 6 {
            return Some((fields, rest.get(1..).filter(|it| !it.is_empty())?));
        }
    }
    None
}

/// Whether a name is one of an entry in the directory that is listed.
pub(super) fn is_name(name: &[u8]) -> bool {
    let is_special = matches!(name, b"" | b"." | b"..");
    !is_special && !name.iter().any(|it| matches!(it, b'/' | 0 | b'\r' | b'\n'))
}

/// Entries of a listing, each name once; the line that has no known form.
pub(super) fn entries(
    listing: &[u8],
    line: fn(&[u8]) -> Line,
) -> Result<Vec<(Facts, Vec<u8>)>, Vec<u8>> {
    let mut found = Vec::new();
    let mut names = HashSet::new();
    for octets in listing.split(|it| *it == b'\n') {
        let octets = octets.strip_suffix(b"\r").unwrap_or(octets);
        match line(octets) {
            Line::Entry(facts, name) => {
                if names.insert(name.clone()) {
                    found.push((facts, name));
                }
            }
            Line::Nothing => {}
            Line::Strange => return Err(octets.to_vec()),
        }
    }
    Ok(found)
}

/// The directory of a reply 257: quoted, with quotes in it twice.
pub(super) fn directory(text: &str) -> Option<Vec<u8>> {
    let (_, rest) = text.split_once('"')?;
    let mut path = String::new();
    let mut letters = rest.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '"' && letters.next_if_eq(&'"').is_none() {
            let is_path = path.starts_with('/') && !path.contains(char::is_control);
            return is_path.then(|| path.into_bytes());
        }
        path.push(letter);
    }
    None
}

/// The port of a reply to EPSV (RFC 2428): `(|||port|)`, any delimiter.
pub(super) fn extended_port(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once('(')?;
    let (inner, _) = rest.split_once(')')?;
    let delimiter = inner.chars().next()?;
    let fields: Vec<_> = inner.split(delimiter).collect();
    let ["", "", "", port, ""] = fields[..] else {
        return None;
    };
    port.parse().ok().filter(|it| *it > 0)
}

/// The port of a reply to PASV: the last two of six numbers, with or without brackets. Its address is passed over.
pub(super) fn passive_port(text: &str) -> Option<u16> {
    let digits = |c: char| !c.is_ascii_digit() && c != ',';
    let fields = text.split(digits).find(|it| it.matches(',').count() == 5)?;
    let numbers: Option<Vec<u8>> = fields.split(',').map(|it| it.parse().ok()).collect();
    let [.., high, low] = numbers?[..] else {
        return None;
    };
    Some(u16::from_be_bytes([high, low])).filter(|it| *it > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mlsd_are_entries() {
        let line = b"Type=file;SIZE=12;Modify=20231114221320.5;UNIX.mode=0640;unique=1g2; a b;c";
        let Line::Entry(facts, name) = machine(line) else {
            panic!("no entry");
        };
        assert_eq!(name, b"a b;c");
        assert_eq!((facts.kind, facts.size), (Kind::File, Some(12)));
        assert_eq!(facts.modified, Some((1_700_000_000, 500_000_000)));
        assert_eq!((facts.mode, &facts.unique[..]), (Some(0o640), &b"1g2"[..]));
        for (line, expected) in [
            ("type=dir; d", Some(Kind::Directory)),
            (
                "type=OS.unix=slink:../a=b; l",
                Some(Kind::Link(b"../a=b".to_vec())),
            ),
            ("type=OS.unix=symlink; l", Some(Kind::Link(Vec::new()))),
            ("type=OS.unix=slink:; l", Some(Kind::Link(Vec::new()))),
            ("type=OS.unix=chr-1/2; l", Some(Kind::Other)),
            ("type=cdir; .", None),
            ("type=pdir; ..", None),
            ("", None),
        ] {
            let found = match machine(line.as_bytes()) {
                Line::Entry(facts, _) => Some(facts.kind),
                Line::Nothing => None,
                Line::Strange => panic!("{line}"),
            };
            assert_eq!(found, expected, "{line}");
        }
        for strange in ["x", "x y", "size=1; x", "type; x"] {
            assert_eq!(machine(strange.as_bytes()), Line::Strange, "{strange}");
        }
    }

    #[test]
    fn lines_of_ls_are_entries() {
        let entry = |line: &str| match long(line.as_bytes()) {
            Line::Entry(facts, name) => Some((facts, String::from_utf8(name).unwrap())),
            Line::Nothing => None,
            Line::Strange => panic!("{line}"),
        };
        let (facts, name) =
            entry("-rw-r-----    1 109      0      12 Nov 28 09:34  sp ace").unwrap();
        assert_eq!(name, " sp ace");
        assert_eq!((facts.size, facts.mode), (Some(12), Some(0o640)));
        let (facts, name) = entry("lrwxrwxrwx 1 ftp ftp 2 Jan 01  2020 up -> /a").unwrap();
        assert_eq!((facts.kind, &name[..]), (Kind::Link(b"/a".to_vec()), "up"));
        let (facts, name) = entry("drwxr-sr-x 2 root 4096 Feb  3 2001 d").unwrap();
        assert_eq!((facts.kind, &name[..]), (Kind::Directory, "d"));
        assert_eq!(facts.mode, Some(0o755));
        let (facts, _) = entry("prw------- 1 a b 0 May 1 00:00 pipe").unwrap();
        assert_eq!(facts.kind, Kind::Other);
        assert_eq!(entry("total 8"), None);
        assert_eq!(entry("drwxr-xr-x 2 a b 4096 May 1 00:00 .."), None);
        for strange in [
            "11-28-26  09:34AM <DIR> x",
            "-rw",
            "-rw-r--r-- 1 a b 1 May 1 00:00 ",
        ] {
            assert_eq!(long(strange.as_bytes()), Line::Strange, "{strange}");
        }
    }

    #[test]
    fn a_listing_has_each_name_once() {
        let listed = entries(b"type=file; a\r\ntype=dir; a\ntype=file; b\r\n", machine);
        let names: Vec<_> = listed.unwrap().into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, [b"a", b"b"]);
        assert_eq!(entries(b"type=file; a\nxx", machine), Err(b"xx".to_vec()));
        for bad in ["", ".", "..", "a/b", "/", "a\0", "a\rb"] {
            assert!(!is_name(bad.as_bytes()), "{bad:?}");
        }
        assert!(is_name(b"..."));
    }

    #[test]
    fn replies_have_their_parts() {
        assert_eq!(directory("\"/a\"\"b\" is it"), Some(b"/a\"b".to_vec()));
        assert_eq!(directory("\"a\""), None);
        assert_eq!(directory("\"/a"), None);
        assert_eq!(extended_port("Ok (|||258|)"), Some(258));
        assert_eq!(extended_port("Ok (!!!258!)."), Some(258));
        for bad in ["(|||0|)", "(|||70000|)", "(|1|a|2|)", "(", "()", "|||1|"] {
            assert_eq!(extended_port(bad), None, "{bad}");
        }
        assert_eq!(passive_port("Mode (127,0,0,1,1,2)."), Some(258));
        assert_eq!(passive_port("Mode 127,0,0,1,1,2"), Some(258));
        for bad in ["(1,2,3,4,5)", "(1,2,3,4,256,1)", "(1,2,3,4,0,0)", ""] {
            assert_eq!(passive_port(bad), None, "{bad}");
        }
    }
}
