//! Users: anonymous ones, and those of a file with a line `NAME:HASH[:ro]` each. Hashes are those of `crypt(5)`, SHA-256 or SHA-512
//! (`openssl passwd -6`).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use sha_crypt::{Algorithm, PasswordVerifier as _, ShaCrypt};

/// Rights of a user that is logged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Whether it may change files.
    pub may_write: bool,
}

/// All users.
#[derive(Debug, Clone, Default)]
pub struct Users {
    /// Rights of anonymous users; `None`: there are none.
    pub anonymous: Option<bool>,
    known: BTreeMap<String, (String, bool)>,
}

impl Users {
    /// Reads the users of a file. Empty lines and those that begin with `#` are passed over.
    ///
    /// # Errors
    /// Errors of `open(2)`; `InvalidData` with the line for one that is none.
    pub fn read(&mut self, path: &Path) -> io::Result<()> {
        for (index, line) in fs::read_to_string(path)?.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let fields: Vec<_> = line.split(':').collect();
            let (name, hash, may_write) = match fields[..] {
                [name, hash] => (name, hash, true),
                [name, hash, "ro"] => (name, hash, false),
                _ => return Err(wrong(path, index)),
            };
            if name.is_empty() || !(hash.starts_with("$5$") || hash.starts_with("$6$")) {
                return Err(wrong(path, index));
            }
            let user = (hash.to_owned(), may_write);
            self.known.insert(name.to_owned(), user);
        }
        Ok(())
    }

    /// The user, if there is one with this password. Any password is an anonymous user's.
    #[must_use]
    pub fn check(&self, name: &str, password: &str) -> Option<User> {
        let is_anonymous =
            name.eq_ignore_ascii_case("anonymous") || name.eq_ignore_ascii_case("ftp");
        if let Some(may_write) = self.anonymous.filter(|_| is_anonymous) {
            return Some(User {
                name: "anonymous".into(),
                may_write,
            });
        }
        let (hash, may_write) = self.known.get(name)?;
        let verifier = ShaCrypt::from(Algorithm::default());
        verifier
            .verify_password(password.as_bytes(), hash.as_str())
            .ok()?;
        Some(User {
            name: name.to_owned(),
            may_write: *may_write,
        })
    }
}

fn wrong(path: &Path, index: usize) -> io::Error {
    let text = format!(
        "{}:{}: not NAME:HASH or NAME:HASH:ro",
        path.display(),
        index + 1
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `openssl passwd -6 -salt abcdefgh secret`.
    const HASH: &str = "$6$abcdefgh$DaIoUNvzZNFcrVMzCnnCVVJEVcn8jRWoGlzCCpRO.Fzr7gj04q8FTq7XHI5PPDYcDNb.cKkbTc5Ue8A6kKZXa1";

    #[test]
    fn passwords_are_those_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        let made = std::process::Command::new("openssl")
            .args(["passwd", "-6", "-salt", "abcdefgh", "secret"])
            .output();
        let hash = made.map_or_else(
            |_| HASH.to_owned(),
            |it| String::from_utf8(it.stdout).unwrap(),
        );
        fs::write(
            &path,
            format!("# users\n\nann:{}\nbob:{}:ro\n", hash.trim(), hash.trim()),
        )
        .unwrap();
        let mut users = Users::default();
        users.read(&path).unwrap();
        assert!(users.check("ann", "secret").unwrap().may_write);
        assert!(!users.check("bob", "secret").unwrap().may_write);
        assert_eq!(users.check("ann", "wrong"), None);
        assert_eq!(users.check("eve", "secret"), None);
        assert_eq!(users.check("anonymous", "x"), None);
        users.anonymous = Some(false);
        assert!(!users.check("FTP", "x").unwrap().may_write);
        fs::write(&path, "ann:secret\n").unwrap();
        assert!(
            users
                .read(&path)
                .unwrap_err()
                .to_string()
                .ends_with(":1: not NAME:HASH or NAME:HASH:ro")
        );
    }
}
