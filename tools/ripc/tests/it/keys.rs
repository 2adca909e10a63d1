//! Keys and tokens: each refusal between real processes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Instant;

use super::{SOON, Server, ripc};

/// Exit status of a call by its code.
const PERMISSION_DENIED: i32 = 64 + 7;
const FAILED_PRECONDITION: i32 = 64 + 9;
const UNAUTHENTICATED: i32 = 64 + 16;

fn run(words: &[&str]) -> Output {
    ripc().args(words).output().unwrap()
}

/// A folder with files to serve, keys and tokens.
struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("files")).unwrap();
        fs::write(folder.path().join("files/small"), "few\n").unwrap();
        fs::write(folder.path().join("files/big"), vec![7; 100_000]).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        let path: PathBuf = self.folder.path().join(name);
        path.to_str().unwrap().to_owned()
    }

    /// Makes a key; returns its public one.
    fn key(&self, name: &str) -> String {
        let output = run(&["keygen", &self.path(name)]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Makes a token of `secret` with these options.
    fn token(&self, name: &str, options: &[&str]) {
        let (secret, out) = (self.path("secret"), self.path(name));
        let mut words = vec!["token", "--secret", &secret, "--out", &out, "files"];
        words.extend(options);
        let output = run(&words);
        assert!(output.status.success(), "{output:?}");
    }

    fn serve(&self, options: &[&str]) -> Server {
        let errors = fs::File::create(self.path("errors")).unwrap();
        let files = self.path("files");
        Server::start_with(Path::new(&files), options, Stdio::from(errors))
    }

    /// Waits until the server has reported this.
    fn reported(&self, text: &str) {
        let end = Instant::now() + SOON;
        loop {
            let errors = fs::read_to_string(self.path("errors")).unwrap();
            if errors.contains(text) {
                return;
            }
            assert!(Instant::now() < end, "{text}: {errors}");
            std::thread::yield_now();
        }
    }
}

fn get(server: &Server, options: &[&str]) -> Output {
    let mut words = vec!["call", "--timeout", "60", "--at", &server.address];
    words.extend(options);
    words.extend(["files", "get", "small"]);
    run(&words)
}

fn served(output: &Output) {
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"few\n");
}

fn refused(output: &Output, status: i32, text: &str) {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains(text), "{errors}");
    assert!(output.stdout.is_empty());
}

#[test]
fn callers_without_the_keys_are_refused() {
    let lab = Lab::new();
    let (server_key, client, stranger) =
        (lab.key("server"), lab.key("client"), lab.key("stranger"));
    fs::write(lab.path("clients"), format!("{client} # one\n")).unwrap();
    let [mine, other] = ["client", "stranger"].map(|name| lab.path(name));
    let server = lab.serve(&[
        "--key",
        &lab.path("server"),
        "--known-clients",
        &lab.path("clients"),
    ]);
    served(&get(&server, &["--peer-key", &server_key, "--key", &mine]));
    let output = get(&server, &[]);
    refused(&output, UNAUTHENTICATED, "requires a handshake");
    lab.reported("no handshake, which is required");
    let output = get(&server, &["--peer-key", &stranger, "--key", &mine]);
    refused(&output, UNAUTHENTICATED, "does not have the required key");
    lab.reported("not authentic");
    for options in [
        &["--peer-key", &server_key][..],
        &["--peer-key", &server_key, "--key", &other],
    ] {
        let output = get(&server, options);
        refused(&output, PERMISSION_DENIED, "does not know the key");
    }
    lab.reported(&stranger);
    // A ping, and the public key from a file.
    fs::write(lab.path("public"), &server_key).unwrap();
    let public = lab.path("public");
    let ping = ["ping", "--at", &server.address, "files", "-c", "1"];
    let output = run(&[&ping[..], &["--peer-key", &public, "--key", &mine]].concat());
    assert!(output.status.success(), "{output:?}");
    refused_ping(&run(&ping));
    // A server without a key, where one is required.
    let open = lab.serve(&[]);
    served(&get(&open, &[]));
    let output = get(&open, &["--peer-key", &server_key]);
    refused(&output, UNAUTHENTICATED, "makes no handshake");
}

fn refused_ping(output: &Output) {
    assert_eq!(output.status.code(), Some(UNAUTHENTICATED), "{output:?}");
}

#[test]
fn sealed_calls_have_their_items_inside() {
    let lab = Lab::new();
    let server_key = lab.key("server");
    let server = lab.serve(&["--key", &lab.path("server")]);
    let keys = ["--peer-key", &server_key, "--seal"];
    served(&get(&server, &keys));
    let call = ["call", "--timeout", "60", "--at", &server.address];
    let output = run(&[&call[..], &keys, &["files", "get", "big"]].concat());
    refused(&output, FAILED_PRECONDITION, "100000 bytes");
    // Without sealing it comes.
    let output = run(&[&call[..], &keys[..2], &["files", "get", "big"]].concat());
    assert!(output.stdout == vec![7; 100_000], "{:?}", output.status);
}

#[test]
fn calls_without_the_token_are_refused() {
    let lab = Lab::new();
    let (server_key, client) = (lab.key("server"), lab.key("client"));
    assert!(
        run(&["keygen", "--secret", &lab.path("secret")])
            .status
            .success()
    );
    let other = lab.path("other-secret");
    assert!(run(&["keygen", "--secret", &other]).status.success());
    let server = lab.serve(&[
        "--key",
        &lab.path("server"),
        "--secret",
        &lab.path("secret"),
    ]);
    let with = |token: Option<&str>| {
        let (key, token) = (lab.path("client"), token.map(|name| lab.path(name)));
        let mut options = vec!["--peer-key", &server_key, "--key", &key];
        if let Some(token) = &token {
            options.extend(["--token", token]);
        }
        get(&server, &options)
    };
    refused(&with(None), UNAUTHENTICATED, "none was presented");
    lab.token("all", &[]);
    served(&with(Some("all")));
    lab.token("bound", &["get", "--valid", "3600", "--client", &client]);
    served(&with(Some("bound")));
    lab.token("list", &["list"]);
    refused(
        &with(Some("list")),
        PERMISSION_DENIED,
        "not for this method",
    );
    lab.token("expired", &["--valid", "0"]);
    refused(&with(Some("expired")), UNAUTHENTICATED, "past its end");
    lab.token("foreign", &["--client", &server_key]);
    refused(&with(Some("foreign")), PERMISSION_DENIED, "another client");
    // Of another secret, and of another service.
    let forged = lab.path("forged");
    let words = ["token", "--secret", &other, "--out", &forged, "files"];
    assert!(run(&words).status.success());
    refused(&with(Some("forged")), UNAUTHENTICATED, "was changed");
    let elsewhere = lab.path("elsewhere");
    let secret = lab.path("secret");
    let words = ["token", "--secret", &secret, "--out", &elsewhere, "kv"];
    assert!(run(&words).status.success());
    refused(
        &with(Some("elsewhere")),
        UNAUTHENTICATED,
        "none was presented",
    );
    // A digit changed, and the last octet left out.
    let text = fs::read_to_string(lab.path("all")).unwrap();
    let flipped = text.replacen(
        &text[70..71],
        if &text[70..71] == "0" { "1" } else { "0" },
        1,
    );
    for (name, text) in [
        ("flipped", flipped),
        ("cut", text[..text.len() - 3].to_owned()),
    ] {
        fs::write(lab.path(name), text).unwrap();
        fs::set_permissions(lab.path(name), Permissions::from_mode(0o600)).unwrap();
        assert!(!with(Some(name)).status.success(), "{name}");
    }
}

#[test]
fn files_of_secrets_are_closed_to_others() {
    let lab = Lab::new();
    let public = lab.key("key");
    assert!(
        run(&["keygen", "--secret", &lab.path("secret")])
            .status
            .success()
    );
    lab.token("token", &[]);
    for name in ["key", "secret", "token"] {
        let mode = fs::metadata(lab.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{name}");
    }
    let key = lab.path("key");
    let shown = run(&["keygen", "--show", &key]);
    assert_eq!(String::from_utf8_lossy(&shown.stdout).trim(), public);
    // An existing file is not written.
    let before = fs::read(&key).unwrap();
    assert_eq!(run(&["keygen", &key]).status.code(), Some(1));
    assert_eq!(fs::read(&key).unwrap(), before);
    for name in ["key", "secret", "token"] {
        fs::set_permissions(lab.path(name), Permissions::from_mode(0o644)).unwrap();
    }
    let (secret, token, files) = (lab.path("secret"), lab.path("token"), lab.path("files"));
    let at = ["call", "--at", "127.0.0.1:1", "files", "list"];
    for words in [
        &["keygen", "--show", &key][..],
        &["token", "--secret", &secret, "files"],
        &["serve-files", "--key", &key, &files],
        &["serve-files", "--secret", &secret, &files],
        &[&at[..], &["--peer-key", &public, "--key", &key]].concat(),
        &[&at[..], &["--token", &token]].concat(),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?} {output:?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            errors.contains("mode 0644 gives rights to others"),
            "{errors}"
        );
        assert!(!errors.contains("ripc-private-key"), "{errors}");
    }
    // Options that would do nothing are usage errors.
    for options in [&["--seal"][..], &["--key", &key], &["--peer-key", "12"]] {
        assert_eq!(run(&[&at[..], options].concat()).status.code(), Some(2));
    }
}

#[test]
fn the_benchmark_has_calls_with_a_handshake() {
    let output = run(&[
        "bench",
        "--handshake",
        "--rounds",
        "50",
        "--size",
        "64",
        "--long",
        "0",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("sealed / plain"), "{text}");
    let row = text.lines().last().unwrap();
    assert!(row.starts_with("     64 ") && row.contains(", "), "{row}");
}
