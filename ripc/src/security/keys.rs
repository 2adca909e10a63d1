//! Keys and token secrets, and the files that they are in.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::str::FromStr;

use nix::fcntl::OFlag;
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver as _, DefaultResolver};

use crate::error::Error;
use crate::system::fill_random;

/// Octets of a key or secret.
pub(crate) const KEY: usize = 32;
/// Longest file that is read.
const LONGEST: u64 = 64 << 10;
/// Rights of others than the owner.
const OTHERS: u32 = 0o077;

/// Why a text or file is no key, secret or token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("{file}: {source}")]
    Io {
        /// Name of the file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// Others than the owner have rights to the file.
    #[error("{file}: mode {mode:04o} gives rights to others; a file with a secret has 0600")]
    Open {
        /// Name of the file.
        file: String,
        /// Mode of the file.
        mode: u32,
    },
    /// The file is of another kind, or damaged.
    #[error("{file} is not {wanted}")]
    Format {
        /// Name of the file.
        file: String,
        /// Content that it should have.
        wanted: &'static str,
    },
    /// A text that is not of its form.
    #[error("not {0}")]
    Text(&'static str),
}

/// Public key of an endpoint: its name for peers. As a text it has 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY]);

impl PublicKey {
    /// The key of these octets, X25519.
    #[must_use]
    pub const fn new(octets: [u8; KEY]) -> Self {
        Self(octets)
    }

    /// Its octets.
    #[must_use]
    pub const fn octets(&self) -> &[u8; KEY] {
        &self.0
    }

    /// Reads a file of public keys: one a line, 64 hexadecimal digits. `#` begins a comment.
    ///
    /// # Errors
    /// [`KeyError::Io`], [`KeyError::Format`] for a line that is no key.
    pub fn read_list(path: &Path) -> Result<Vec<Self>, KeyError> {
        let text = read(path, false)?;
        let lines = text.lines().map(|line| match line.split_once('#') {
            Some((before, _)) => before.trim(),
            None => line.trim(),
        });
        let keys = lines.filter(|line| !line.is_empty()).map(str::parse);
        let keys: Result<_, KeyError> = keys.collect();
        keys.map_err(|_| format_error(path, "a list of public keys, 64 hexadecimal digits a line"))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let octets = unhex(text).and_then(|octets| octets.try_into().ok());
        octets
            .map(Self)
            .ok_or(KeyError::Text("a public key: 64 hexadecimal digits"))
    }
}

/// Private key of an endpoint.
#[derive(Clone)]
pub struct PrivateKey {
    octets: [u8; KEY],
    public: PublicKey,
}

impl PrivateKey {
    /// Content of a file of a private key, for messages.
    const WANTED: &'static str = "a file of a private key, as `ripc keygen` makes it";
    const MARK: &'static str = "ripc-private-key ";

    /// A new key.
    ///
    /// # Errors
    /// [`Error::System`] without randomness.
    pub fn generate() -> Result<Self, Error> {
        let mut octets = [0; KEY];
        fill_random(&mut octets)?;
        Ok(Self::new(octets))
    }

    /// The key of these octets, X25519.
    ///
    /// # Panics
    /// Never: the curve is compiled in.
    #[must_use]
    pub fn new(octets: [u8; KEY]) -> Self {
        let curve = DefaultResolver.resolve_dh(&DHChoice::Curve25519);
        let mut curve = curve.expect("the curve is compiled in");
        curve.set(&octets);
        let mut public = [0; KEY];
        public.copy_from_slice(curve.pubkey());
        Self {
            octets,
            public: PublicKey(public),
        }
    }

    /// Its public key.
    #[must_use]
    pub const fn public(&self) -> PublicKey {
        self.public
    }

    /// Reads the file of a key, as [`create`](Self::create) makes it.
    ///
    /// # Errors
    /// [`KeyError::Io`], [`KeyError::Open`] where others than the owner have rights to it, [`KeyError::Format`].
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        read_marked(path, Self::MARK, Self::WANTED).map(Self::new)
    }

    /// Makes the file of the key, which is new, and closed to others than the owner.
    ///
    /// # Errors
    /// [`KeyError::Io`], also where there is a file of this name.
    pub fn create(&self, path: &Path) -> Result<(), KeyError> {
        create(path, &format!("{}{}\n", Self::MARK, hex(&self.octets)))
    }

    pub(crate) const fn octets(&self) -> &[u8; KEY] {
        &self.octets
    }
}

/// The public key.
impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey(of {})", self.public)
    }
}

/// Digits of octets.
pub(crate) fn hex(octets: &[u8]) -> String {
    use fmt::Write as _;
    let mut text = String::with_capacity(2 * octets.len());
    for octet in octets {
        let _ = write!(text, "{octet:02x}");
    }
    text
}

/// Octets of digits.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let digit = |of: u8| {
        char::from(of)
            .to_digit(16)
            .and_then(|it| u8::try_from(it).ok())
    };
    let octet = |[high, low]: &[u8; 2]| Some((digit(*high)? << 4) | digit(*low)?);
    pairs.iter().map(octet).collect()
}

fn format_error(path: &Path, wanted: &'static str) -> KeyError {
    KeyError::Format {
        file: path.display().to_string(),
        wanted,
    }
}

/// Text of a regular file. A `secret` one is refused where others than its owner have rights to it.
pub(crate) fn read(path: &Path, secret: bool) -> Result<String, KeyError> {
    let name = || path.display().to_string();
    let failed = |source| KeyError::Io {
        file: name(),
        source,
    };
    // A FIFO would make the program wait for its other end.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file: File = options.open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mode = metadata.mode() & 0o7777;
    if secret && mode & OTHERS != 0 {
        return Err(KeyError::Open { file: name(), mode });
    }
    if !metadata.is_file() || metadata.len() > LONGEST {
        return Err(format_error(path, "a short regular file"));
    }
    let mut text = String::new();
    let mut file = file.take(LONGEST);
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// The key or secret of a file with this mark before it.
pub(crate) fn read_marked(
    path: &Path,
    mark: &str,
    wanted: &'static str,
) -> Result<[u8; KEY], KeyError> {
    let text = read(path, true)?;
    let digits = text.strip_prefix(mark).map(str::trim_end);
    let octets = digits.and_then(unhex).and_then(|it| it.try_into().ok());
    octets.ok_or_else(|| format_error(path, wanted))
}

/// Makes a new file that is closed to others than its owner.
pub(crate) fn create(path: &Path, text: &str) -> Result<(), KeyError> {
    let failed = |source| KeyError::Io {
        file: path.display().to_string(),
        source,
    };
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path).map_err(failed)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_octets() {
        assert_eq!(hex(&[0, 0x7f, 0xff]), "007fff");
        assert_eq!(unhex("007fFf"), Some(vec![0, 0x7f, 0xff]));
        assert_eq!(unhex(""), Some(vec![]));
        for wrong in ["0", "0g", "é", "+1", " 0"] {
            assert_eq!(unhex(wrong), None, "{wrong}");
        }
    }

    /// The keys of the example in RFC 7748.
    #[test]
    fn public_keys_are_of_their_private_keys() {
        for (private, public) in [
            (
                "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
                "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
            ),
            (
                "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
                "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
            ),
        ] {
            let key = PrivateKey::new(unhex(private).unwrap().try_into().unwrap());
            assert_eq!(key.public().to_string(), public);
            assert_eq!(public.parse::<PublicKey>().unwrap(), key.public());
            let shown = format!("{key:?}");
            assert!(!shown.contains(private), "{shown}");
        }
        assert!("8520".parse::<PublicKey>().is_err());
    }

    #[test]
    fn files_are_closed_to_others_and_refused_where_they_are_not() {
        use std::fs::{self, Permissions};
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = PrivateKey::generate().unwrap();
        key.create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(PrivateKey::read(&path).unwrap().octets(), key.octets());
        // An existing file stays.
        assert!(matches!(key.create(&path), Err(KeyError::Io { .. })));
        for mode in [0o640, 0o604, 0o620, 0o601] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = PrivateKey::read(&path).unwrap_err();
            assert!(matches!(error, KeyError::Open { .. }), "{mode:o} {error}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        assert!(PrivateKey::read(&path).is_ok());
        let public = key.public().to_string();
        for wrong in ["", "ripc-private-key", "ripc-private-key 00\n", &public] {
            let path = folder.path().join("wrong");
            let _ = fs::remove_file(&path);
            create(&path, wrong).unwrap();
            let error = PrivateKey::read(&path).unwrap_err();
            assert!(matches!(error, KeyError::Format { .. }), "{wrong} {error}");
        }
        let list = folder.path().join("list");
        fs::write(&list, format!("# clients\n\n{public} # one\n")).unwrap();
        assert_eq!(PublicKey::read_list(&list).unwrap(), [key.public()]);
        fs::write(&list, "kv\n").unwrap();
        assert!(PublicKey::read_list(&list).is_err());
    }
}
