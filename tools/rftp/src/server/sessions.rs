//! RPSV, RADR, RSTR and RRTR: transfers over a queue pair or a TCP connection of their own (`rfc-notes/transfer.md` §9).

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dgiwarp_transfer::disk::{Item, TreeSink, TreeSinkOptions, TreeSource};
use dgiwarp_transfer::{
    Connection, Control, Error, Event, Join, Options, Port, Secret, Summary, receive, send,
};
use dgiwarp_transfer_cli::listen;

use super::command::Command;
use super::control::Client;
use super::data;
use crate::tcp;

/// Time for the client to connect.
const CONNECT: Duration = Duration::from_secs(20);

/// Time after which a listener checks whether its session has ended.
const TURN: Duration = Duration::from_millis(200);

/// How the next session's connection comes up.
#[derive(Debug)]
pub(super) struct Meeting {
    token: [u8; 16],
    way: Way,
}

#[derive(Debug)]
enum Way {
    Listen(Arc<Port>),
    Dial { rc: bool, to: SocketAddr },
}

impl Client {
    pub(super) fn session(&mut self, command: &Command) -> io::Result<()> {
        match command.verb.as_str() {
            "RPSV" => self.meet_here(command),
            "RADR" => self.meet_there(command),
            "RSTR" => self.take_session(command),
            _ => self.give_session(command),
        }
    }

    fn meet_here(&mut self, command: &Command) -> io::Result<()> {
        self.meeting = None;
        let rc = match command.text().to_ascii_uppercase().as_str() {
            "RC" | "" => true,
            "TCP" => false,
            _ => return self.reply(504, "RC or TCP"),
        };
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(io::Error::other)?;
        let port = match self.port(rc) {
            Ok(port) => port,
            Err(text) => return self.reply(425, &text),
        };
        let number = match port.local_addr() {
            Ok(address) => address.port(),
            Err(error) => return self.reply(425, &error.to_string()),
        };
        let way = Way::Listen(Arc::new(port));
        self.meeting = Some(Meeting { token, way });
        let token = hexadecimal(&token);
        let text = format!("Entering RDMA passive mode (|||{number}|) TOKEN={token}");
        self.reply(229, &text)
    }

    fn port(&self, rc: bool) -> Result<Port, String> {
        let ports = self.server.config.passive_ports.clone();
        let mut last = "no port is free".to_owned();
        for number in ports.unwrap_or(0..=0) {
            let address = SocketAddr::new(self.local, number);
            let rnic = rc.then(|| self.server.rnic()).transpose();
            let rnic = rnic.map_err(|error| error.to_string())?;
            match listen(rnic.as_ref(), address) {
                Ok((port, _)) => return Ok(port),
                Err(error) => last = error.to_string(),
            }
        }
        Err(last)
    }

    fn meet_there(&mut self, command: &Command) -> io::Result<()> {
        self.meeting = None;
        let fields: Vec<_> = command.text().split(' ').collect();
        let [kind, address, token] = fields[..] else {
            return self.reply(501, "RADR RC|TCP |family|address|port| TOKEN=hex");
        };
        let rc = match kind.to_ascii_uppercase().as_str() {
            "RC" => true,
            "TCP" => false,
            _ => return self.reply(504, "RC or TCP"),
        };
        let token = token.strip_prefix("TOKEN=").and_then(parse_token);
        let (Some(to), Some(token)) = (data::parse_eprt(address), token) else {
            return self.reply(501, "Not an address and a token");
        };
        if !tcp::is_same(to.ip(), self.peer.ip()) || to.port() < 1024 {
            return self.reply(501, "Not your own address, or a port below 1024");
        }
        let way = Way::Dial { rc, to };
        self.meeting = Some(Meeting { token, way });
        self.reply(200, "Agreed")
    }

    fn connect(&self, meeting: &Meeting, control: &Control) -> Result<Connection, Error> {
        match &meeting.way {
            Way::Listen(port) => {
                let peer = Some(self.peer.ip());
                let token = &meeting.token;
                let mut connection = if self.is_private {
                    port.accept_protected(token, peer, CONNECT, control)?
                } else {
                    port.accept(token, peer, CONNECT, control)?
                };
                self.take_streams(port, connection.joinable(control)?, control);
                Ok(connection)
            }
            Way::Dial { rc: false, to } => self.protected(Connection::tcp(*to)?, meeting, control),
            Way::Dial { rc: true, to } => {
                let rnic = self.server.rnic().map_err(io::Error::other)?;
                self.protected(Connection::rc(&rnic, *to)?, meeting, control)
            }
        }
    }

    /// A connection that was dialled, protected as PROT wants it.
    fn protected(
        &self,
        connection: Connection,
        meeting: &Meeting,
        control: &Control,
    ) -> Result<Connection, Error> {
        if !self.is_private {
            return Ok(connection);
        }
        connection.protected(&Secret::Preshared(meeting.token), control)
    }

    /// Takes further streams of a session, in a thread of its own that ends with it.
    fn take_streams(&self, port: &Arc<Port>, join: Join, control: &Control) {
        let (port, peer, watch) = (Arc::clone(port), self.peer.ip(), control.watch());
        let is_private = self.is_private;
        let body = move || {
            let Ok(own) = Control::new() else { return };
            while watch.is_running() {
                let Ok(arrived) = port.arrive(TURN, &own) else {
                    continue;
                };
                let arrived = arrived.filter(|it| tcp::is_same(it.peer().ip(), peer));
                let connection = arrived.and_then(|it| {
                    if is_private {
                        it.greet_protected(&[join.secret()], &own).ok()
                    } else {
                        it.greet(&own)
                    }
                });
                if let Some(connection) = connection.filter(|it| join.is_of(it)) {
                    join.give(connection);
                }
            }
        };
        // Without a thread the session has one stream.
        let thread = thread::Builder::new().name("rftpd-streams".into());
        let _ = thread.spawn(body);
    }

    /// The client is the source.
    fn take_session(&mut self, command: &Command) -> io::Result<()> {
        if !self.writes() {
            return self.reply(550, "Only reading is permitted");
        }
        let path = self.resolved(command);
        let options = TreeSinkOptions {
            durable: self.server.config.durable,
            ..TreeSinkOptions::default()
        };
        let sink = Arc::new(TreeSink::new(Arc::clone(&self.server.root), path, options));
        self.run(|connection, options, control, note| {
            receive(connection, sink, options, control, note)
        })
    }

    /// The server is the source.
    fn give_session(&mut self, command: &Command) -> io::Result<()> {
        let path = self.resolved(command);
        if let Err(error) = self.server.root.metadata(&path) {
            return self.fail(&error);
        }
        let item = Item {
            root: Arc::clone(&self.server.root),
            path,
            name: Path::new("").to_owned(),
        };
        let source = Arc::new(TreeSource::new(vec![item]));
        self.run(|connection, options, control, note| {
            send(connection, source, options, control, note)
        })
    }

    fn run<R>(&mut self, session: R) -> io::Result<()>
    where
        R: FnOnce(Connection, &Options, &Control, &mut dyn FnMut(&Event)) -> Result<Summary, Error>,
    {
        let Some(meeting) = self.meeting.take() else {
            return self.reply(425, "RPSV or RADR first");
        };
        if !self.is_private && self.requires_tls() {
            return self.reply(521, "PROT P first");
        }
        self.reply(150, "The session begins")?;
        let control = Control::new()?;
        let options = Options {
            token: meeting.token,
            encrypt: self.is_private,
            ..self.server.config.options
        };
        let (server, peer) = (Arc::clone(&self.server), self.peer);
        let mut note = |event: &Event| match event {
            Event::Finished { text, .. }
            | Event::Unreadable { text, .. }
            | Event::Remark { text }
                if !text.is_empty() =>
            {
                server.log(Some(peer), text);
            }
            _ => {}
        };
        let done = self.connect(&meeting, &control);
        let done = done.and_then(|connection| session(connection, &options, &control, &mut note));
        match done {
            Ok(summary) if summary.failed > 0 => {
                self.reply(451, &format!("{} entries failed", summary.failed))
            }
            Ok(summary) => {
                let Summary {
                    stored,
                    present,
                    octets,
                    ..
                } = summary;
                self.reply(
                    226,
                    &format!("{stored} entries, {present} were there, {octets} octets"),
                )
            }
            Err(error) => {
                self.server.log(Some(peer), &error.to_string());
                self.reply(426, &error.to_string())
            }
        }
    }
}

fn hexadecimal(octets: &[u8]) -> String {
    octets.iter().map(|it| format!("{it:02x}")).collect()
}

pub(super) fn parse_token(text: &str) -> Option<[u8; 16]> {
    let is_fine = text.len() == 32 && text.bytes().all(|it| it.is_ascii_hexdigit());
    let number = u128::from_str_radix(text, 16).ok()?;
    is_fine.then(|| number.to_be_bytes())
}
