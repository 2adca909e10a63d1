//! Ends that listen.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

pub(crate) use dgiwarp_transfer_cli::testing::{
    SOON, attributes, fail, listing, listing_with_left, make_tree, names, octets, run,
    set_attribute, succeed, wait,
};

pub(crate) fn mz(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mz"));
    command.args(arguments);
    command.stdin(Stdio::null());
    command
}

/// An end that listens on the loopback interface.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) child: Child,
    pub(crate) host: String,
    pub(crate) code: String,
    said: Option<JoinHandle<String>>,
}

impl Listener {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::of(mz(arguments).args(["--bind", "127.0.0.1:0"]))
    }

    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        errors.read_line(&mut first).unwrap();
        let rest = first.strip_prefix("mz: listening at ").expect(&first);
        let (host, code) = rest.trim().split_once(", code ").expect(&first);
        let (host, code) = (host.to_owned(), code.to_owned());
        let said = std::thread::spawn(move || {
            let mut said = String::new();
            // Names need not be UTF-8, messages are.
            let _ = errors.read_to_string(&mut said);
            said
        });
        Self {
            child,
            host,
            code,
            said: Some(said),
        }
    }

    /// A command that sends to it.
    pub(crate) fn send(&self, arguments: &[&str]) -> Command {
        let code = ["send", "--code", &self.code];
        mz(&[&code[..], arguments, &[&self.host]].concat())
    }

    /// Its status and messages, once it has ended.
    pub(crate) fn ended(&mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        let said = self.said.take().unwrap().join().unwrap();
        (status, said)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
