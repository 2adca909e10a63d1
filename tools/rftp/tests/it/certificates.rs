//! Certificates of tests.

use std::path::Path;
use std::process::Command;

use crate::common::succeed;

/// `ca.pem`, `server.pem` with `server.key` signed by it for localhost, `other.pem` with `other.key` for another host, and `own.pem` with `own.key`, which
/// nobody signed. `server.both` has the certificate and its key.
#[derive(Debug)]
pub(crate) struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = "set -e; new='openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30'
            $new -x509 -subj /CN=ca -keyout ca.key -out ca.pem
            sign() {
                $new -subj /CN=$1 -keyout $1.key -out $1.csr
                printf \"subjectAltName=$2\\n\" >$1.ext
                openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile $1.ext -out $1.pem
            }
            sign server DNS:localhost,IP:127.0.0.1
            sign other DNS:other.invalid
            cat server.pem server.key >server.both
            $new -x509 -subj /CN=own -keyout own.key -out own.pem";
        succeed(
            Command::new("sh")
                .args(["-c", script])
                .current_dir(folder.path()),
        );
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Options of `rftpd`.
    pub(crate) fn server(&self, name: &str) -> [String; 4] {
        let certificate = self.path(&format!("{name}.pem"));
        let key = self.path(&format!("{name}.key"));
        ["--tls-cert".into(), certificate, "--tls-key".into(), key]
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}
