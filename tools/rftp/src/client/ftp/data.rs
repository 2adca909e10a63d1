//! Data connections of the client. Each goes to the address of the control connection, whatever the server's reply names.

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};

use super::super::control::{CONNECT, Control};
use super::{Session, Trouble, listing};
use crate::stream::Stream;
use crate::tcp;

/// Longest listing of one directory, in octets.
const LISTING_LIMIT: u64 = 64 << 20;

fn connect(control: &Control, port: u16) -> io::Result<TcpStream> {
    // Not the address that a reply to PASV has: it could be anybody's.
    let to = SocketAddr::new(control.peer.ip(), port);
    let stream = TcpStream::connect_timeout(&to, CONNECT)?;
    stream.set_read_timeout(Some(control.patience))?;
    stream.set_write_timeout(Some(control.patience))?;
    tcp::watch(&stream, control.patience)?;
    Ok(stream)
}

/// Ends a connection of which all has been read.
pub(super) fn close(mut data: Stream) {
    // All is there: a server that is gone changes nothing.
    let _ = data.end();
}

/// A failure of a data connection.
pub(super) fn broken(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock => "the data connection makes no progress".into(),
        _ => format!("the data connection is lost: {error}"),
    }
}

impl Session<'_> {
    /// Opens a data connection and begins a transfer with a command, at an offset where it is not 0. `None`: the server does not restart at it.
    pub(super) fn transfer(
        &mut self,
        command: &[u8],
        path: &[u8],
        offset: u64,
    ) -> Result<Option<Stream>, Trouble> {
        let port = self.passive()?;
        let opened = connect(&self.control, port);
        let data = opened.map_err(|error| Trouble::Lost(format!("no data connection: {error}")))?;
        if offset > 0 {
            let reply = self
                .control
                .ask(&[b"REST ", offset.to_string().as_bytes()])?;
            if reply.code != 350 {
                return Ok(None);
            }
        }
        let space: &[u8] = if path.is_empty() { b"" } else { b" " };
        let reply = self.control.ask(&[command, space, path])?;
        if matches!(reply.code, 125 | 150) {
            return Ok(Some(self.control.data(data)?));
        }
        if offset > 0 && reply.code >= 500 {
            return Ok(None);
        }
        Err(Trouble::refused(path, &reply))
    }

    /// The port of the next data connection.
    fn passive(&mut self) -> Result<u16, Trouble> {
        if self.extended {
            let reply = self.control.ask(&[b"EPSV"])?;
            if let Some(port) = listing::extended_port(&reply.text).filter(|_| reply.code == 229) {
                return Ok(port);
            }
            if !self.control.peer.is_ipv4() {
                return Err(Trouble::Lost(format!("EPSV: {reply}")));
            }
            self.extended = false;
        }
        let reply = self.control.ask(&[b"PASV"])?;
        let port = listing::passive_port(&reply.text).filter(|_| reply.code == 227);
        port.ok_or_else(|| Trouble::Lost(format!("PASV: {reply}")))
    }

    /// The final reply of a transfer.
    pub(super) fn end_transfer(&mut self, path: &[u8]) -> Result<(), Trouble> {
        let reply = self.control.reply()?;
        if reply.is_good() {
            return Ok(());
        }
        Err(Trouble::refused(path, &reply))
    }

    /// The listing that a command has.
    pub(super) fn listing(&mut self, command: &[u8], path: &[u8]) -> Result<Vec<u8>, Trouble> {
        let Some(mut data) = self.transfer(command, path, 0)? else {
            return Ok(Vec::new());
        };
        let mut octets = Vec::new();
        let read = data
            .by_ref()
            .take(LISTING_LIMIT + 1)
            .read_to_end(&mut octets);
        if octets.len() as u64 > LISTING_LIMIT {
            let text = format!("a listing of more than {LISTING_LIMIT} octets");
            return Err(Trouble::Lost(text));
        }
        read.map_err(|error| Trouble::Lost(broken(&error)))?;
        close(data);
        self.end_transfer(path)?;
        Ok(octets)
    }
}
