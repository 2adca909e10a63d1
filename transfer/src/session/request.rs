//! Orders of the end that dials: paths that it wants, and how a target is to become as its source.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use super::Error;
use crate::wire::{self, FRAME_LIMIT, HEADER, NAME_LIMIT, Wish};

/// An order: of a sink, for paths of the source; of a source, for the sink's handling of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// Paths beneath the directory that is served.
    pub paths: Vec<PathBuf>,
    /// The sink removes what the source has not.
    pub prune: bool,
    /// Nothing is changed.
    pub dry_run: bool,
    /// Names are beneath the path, which is one directory, not beneath the directory that it is in.
    pub contents: bool,
    /// Patterns of names that are left out ([`Filter`](crate::disk::Filter)).
    pub exclude: Vec<String>,
    /// Patterns of names that are not left out all the same.
    pub include: Vec<String>,
}

impl Request {
    /// Frames of an order at most: as many as a peer has receives for before its HELLO.
    pub(super) const FRAMES: usize = 8;

    pub(super) fn frames(&self) -> Result<Vec<wire::Request>, Error> {
        let paths = self.paths.iter().map(|it| it.as_os_str().as_bytes());
        let paths = paths.map(|it| Wish::Path(it.to_vec()));
        let exclude = self.exclude.iter();
        let exclude = exclude.map(|it| Wish::Exclude(it.clone().into_bytes()));
        let include = self.include.iter();
        let include = include.map(|it| Wish::Include(it.clone().into_bytes()));
        let begun = wire::Request {
            prune: self.prune,
            dry_run: self.dry_run,
            contents: self.contents,
            ..wire::Request::default()
        };
        let mut frames = vec![begun.clone()];
        let mut octets = HEADER + 4;
        for wish in paths.chain(exclude).chain(include) {
            if wish.octets() > NAME_LIMIT {
                return Err(Error::Option("the length of a path or pattern"));
            }
            if octets + wish.octets() > FRAME_LIMIT {
                if let Some(last) = frames.last_mut() {
                    last.more = true;
                }
                frames.push(begun.clone());
                octets = HEADER + 4;
            }
            octets += wish.octets();
            if let Some(last) = frames.last_mut() {
                last.wishes.push(wish);
            }
        }
        if frames.len() > Self::FRAMES {
            return Err(Error::Option("the length of all paths and patterns"));
        }
        Ok(frames)
    }

    pub(super) fn add(&mut self, part: wire::Request) {
        self.prune = part.prune;
        self.dry_run = part.dry_run;
        self.contents = part.contents;
        let text = |octets: Vec<u8>| String::from_utf8_lossy(&octets).into_owned();
        for wish in part.wishes {
            match wish {
                Wish::Path(octets) => self.paths.push(OsString::from_vec(octets).into()),
                Wish::Exclude(octets) => self.exclude.push(text(octets)),
                Wish::Include(octets) => self.include.push(text(octets)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_comes_as_it_was_given_or_is_too_long() {
        let mut request = Request {
            paths: (0..500)
                .map(|it| format!("{it}/{}", "x".repeat(50)).into())
                .collect(),
            prune: true,
            exclude: vec!["*.o".into()],
            include: vec!["a.o".into()],
            ..Request::default()
        };
        let frames = request.frames().unwrap();
        assert!(frames.len() > 1 && frames.len() <= Request::FRAMES);
        let mut come = Request::default();
        let (last, others) = frames.split_last().unwrap();
        assert!(!last.more && others.iter().all(|it| it.more));
        frames.into_iter().for_each(|part| come.add(part));
        assert_eq!(come, request);
        request.paths = std::iter::repeat_n(request.paths, 10).flatten().collect();
        assert!(request.frames().is_err());
    }
}
