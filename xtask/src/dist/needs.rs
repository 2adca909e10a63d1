//! Which shared libraries programs and libraries need at run time, and how new, from the files themselves.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use object::Endianness;
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, FileHeader};

/// The newest version of each library that is needed, by the library's name; empty if any will do.
pub(super) type Needs = BTreeMap<String, Vec<u32>>;

/// Adds what a file needs.
pub(super) fn add(needs: &mut Needs, file: &Path) -> Result<(), Box<dyn Error>> {
    let data = fs::read(file)?;
    let of_file = read(&data).map_err(|error| format!("{}: {error}", file.display()))?;
    for (library, version) in of_file {
        let present = needs.entry(library).or_default();
        if *present < version {
            *present = version;
        }
    }
    Ok(())
}

fn read(data: &[u8]) -> Result<Needs, Box<dyn Error>> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut needs = Needs::new();
    if let Some((entries, names)) = sections.dynamic(endian, data)? {
        let names = sections.strings(endian, data, names)?;
        for entry in entries {
            if entry.tag32(endian) == Some(DT_NEEDED) {
                let name = entry.string(endian, names)?;
                needs.insert(String::from_utf8(name.to_vec())?, Vec::new());
            }
        }
    }
    if let Some((mut libraries, names)) = sections.gnu_verneed(endian, data)? {
        let names = sections.strings(endian, data, names)?;
        while let Some((library, mut versions)) = libraries.next()? {
            let name = String::from_utf8(library.file(endian, names)?.to_vec())?;
            let newest = needs.entry(name).or_default();
            while let Some(version) = versions.next()? {
                let version = number(&String::from_utf8_lossy(version.name(endian, names)?));
                if *newest < version {
                    *newest = version;
                }
            }
        }
    }
    Ok(needs)
}

/// The number in a version's name, such as 2.34 in `GLIBC_2.34`.
fn number(name: &str) -> Vec<u32> {
    let number = name.rsplit_once('_').map_or("", |(_, number)| number);
    let parts: Result<Vec<u32>, _> = number.split('.').map(str::parse).collect();
    parts.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_version_is_read() {
        assert_eq!(number("GLIBC_2.34"), [2, 34]);
        assert!(number("GLIBC_2.4") < number("GLIBC_2.34"));
        assert_eq!(number("GLIBC_ABI_DT_RELR"), [0; 0]);
        assert_eq!(number("x"), [0; 0]);
    }

    #[test]
    fn this_program_needs_the_c_library() {
        let mut needs = Needs::new();
        add(&mut needs, &std::env::current_exe().unwrap()).unwrap();
        assert!(needs["libc.so.6"] >= vec![2, 2], "{needs:?}");
        assert!(add(&mut needs, Path::new("Cargo.toml")).is_err());
    }
}
