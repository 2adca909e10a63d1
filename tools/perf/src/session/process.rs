//! Processes of this program that a run starts.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::error::{IoContext, PerfError, Result};

/// A process that ends with this value at the latest.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

/// The file of this program.
pub(crate) fn own_program() -> Result<PathBuf> {
    std::env::current_exe().during("find this program's file")
}

impl Process {
    /// Starts a server for one client by this command, which runs this program. Returns its control port too.
    pub(crate) fn server(mut command: Command, address: &str) -> Result<(Self, u16)> {
        let child = command
            .args(["server", "--child", "--bind", address, "--port", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut server = Self(child.during("start the server process")?);
        let mut line = String::new();
        if let Some(stdout) = server.0.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut line)
                .during("read from the server process")?;
        }
        let port = line.trim().rsplit(':').next();
        let port = port.and_then(|port| port.parse().ok());
        port.map(|port| (server, port))
            .ok_or_else(|| PerfError::PeerFailed("the server process did not start".to_owned()))
    }

    /// The error of a process that ended before its work was done.
    pub(crate) fn failure(&mut self) -> PerfError {
        match self.0.wait().map(|status| status.code()) {
            Ok(Some(code)) if code == i32::from(crate::error::EXIT_INTERRUPTED) => {
                PerfError::Interrupted
            }
            Ok(Some(code)) => PerfError::PeerFailed(format!("the client ended with status {code}")),
            Ok(None) => PerfError::PeerFailed("the client was killed".to_owned()),
            Err(error) => PerfError::PeerFailed(error.to_string()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
