//! The tester's side of the agent on the device (`conformance/agent/agent.c`): one JSON object per line, and one back.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};
use thiserror::Error;

/// How long the agent takes at most, beyond the time that it was asked to wait.
const LIMIT: Duration = Duration::from_secs(20);

/// Why an agent does not do what it is asked.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The control connection failed.
    #[error("the agent's control connection: {0}")]
    Io(#[from] io::Error),
    /// Its line is no JSON object.
    #[error("the agent's line is no JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It closed the control connection.
    #[error("the agent closed its control connection while asked to {0}")]
    Gone(&'static str),
    /// It could not, with what the device's library said.
    #[error("the agent cannot {operation}: {reason}")]
    Refused {
        /// Name of the command.
        operation: &'static str,
        /// Its reason.
        reason: String,
    },
    /// Nobody listens there.
    #[error(
        "{0}: no agent listens there; it prints its port when it starts (dgiwarp-conform agent prints its source)"
    )]
    Nobody(SocketAddr),
    /// Nothing comes back.
    #[error(
        "{0}: no answer to a TCP connection: a firewall may drop it, or the host is not there ({1})"
    )]
    Firewall(SocketAddr, io::Error),
    /// The control connection stands and the agent does not answer.
    #[error("{0}: the agent accepts the connection and is silent; it serves one tester at a time")]
    Busy(SocketAddr),
    /// The token is another one.
    #[error(
        "{0}: the agent does not take this token; it prints a new one each time that it starts"
    )]
    Token(SocketAddr),
    /// Its answer lacks something.
    #[error("the agent's answer to {operation} has no {field}")]
    Lacks {
        /// Name of the command.
        operation: &'static str,
        /// Name of the missing field.
        field: &'static str,
    },
}

/// Octets around registered memory that nobody may change.
pub(crate) const MARGIN: u64 = 64;

/// Registered memory of the device.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The agent's number of it.
    pub id: u64,
    /// Its remote key: the STag.
    pub stag: u32,
    /// The tagged offset of its first octet.
    pub to: u64,
    /// Octets.
    pub length: u64,
    /// Octets on either side of them that belong to nobody.
    pub margin: u64,
}

/// A connection of the device.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The agent's number of it.
    pub id: u64,
    /// Where its receives are: so many octets for each.
    pub receives: Memory,
}

/// A completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the work request had.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: u64,
    /// `enum ibv_wc_opcode`.
    pub opcode: u64,
    /// Octets, of receives and Reads.
    pub length: u64,
    /// `enum ibv_wc_flags`.
    pub flags: u64,
    /// Immediate data as it came.
    pub immediate: u64,
    /// The sender's QPN, of datagrams.
    pub source: u64,
}

/// Access rights as `enum ibv_access_flags` has them.
pub mod access {
    /// Local write.
    pub const LOCAL_WRITE: u64 = 1;
    /// Remote write.
    pub const REMOTE_WRITE: u64 = 2;
    /// Remote read.
    pub const REMOTE_READ: u64 = 4;
    /// Remote atomics.
    pub const REMOTE_ATOMIC: u64 = 8;
}

/// A control connection.
#[derive(Debug)]
pub struct Agent {
    reader: BufReader<TcpStream>,
    /// The tester's own address for RDMA.
    ours: IpAddr,
    /// The port that the device listens at next, if it is not any.
    next_port: Option<u16>,
}

impl Agent {
    /// Connects, and presents the token that the agent printed.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn connect(to: SocketAddr, token: &str) -> Result<Self, AgentError> {
        let stream = TcpStream::connect_timeout(&to, LIMIT).map_err(|error| {
            if error.kind() == ErrorKind::ConnectionRefused {
                AgentError::Nobody(to)
            } else {
                AgentError::Firewall(to, error)
            }
        })?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        let ours = stream.local_addr()?.ip();
        let mut agent = Self {
            reader: BufReader::new(stream),
            ours,
            next_port: None,
        };
        match agent.call("hello", json!({ "token": token })) {
            Ok(_) => Ok(agent),
            Err(AgentError::Io(error))
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
            {
                Err(AgentError::Busy(to))
            }
            // It ends the connection of a stranger.
            Err(AgentError::Gone(_) | AgentError::Refused { .. } | AgentError::Io(_)) => {
                Err(AgentError::Token(to))
            }
            Err(error) => Err(error),
        }
    }

    /// The tester's address on the network of the device's RDMA address.
    ///
    /// # Errors
    /// [`AgentError::Io`].
    pub fn our_address(&self) -> Result<IpAddr, AgentError> {
        Ok(self.ours)
    }

    /// Takes the tester's own address for RDMA: this one, or that which routes to the device's RDMA address have.
    ///
    /// # Errors
    /// [`AgentError::Io`] if there is no route.
    pub fn data_path(&mut self, own: Option<IpAddr>, target: SocketAddr) -> Result<(), AgentError> {
        self.ours = match own {
            Some(own) => own,
            None => route(target)?,
        };
        Ok(())
    }

    /// Asks for something; the fields of `with` are its arguments.
    ///
    /// # Errors
    /// [`AgentError`]; [`AgentError::Refused`] leaves the agent usable.
    pub fn call(&mut self, operation: &'static str, mut with: Value) -> Result<Value, AgentError> {
        with["op"] = operation.into();
        let waits = Duration::from_millis(with["timeout_ms"].as_u64().unwrap_or_default());
        self.reader
            .get_ref()
            .set_read_timeout(Some(LIMIT + waits))?;
        let mut line = with.to_string();
        line.push('\n');
        self.reader.get_mut().write_all(line.as_bytes())?;
        let mut answer = String::new();
        if self.reader.read_line(&mut answer)? == 0 {
            return Err(AgentError::Gone(operation));
        }
        let answer: Value = serde_json::from_str(&answer)?;
        if answer["ok"] == json!(1) {
            return Ok(answer);
        }
        let reason = answer["error"].as_str().unwrap_or("no reason").to_owned();
        Err(AgentError::Refused { operation, reason })
    }

    /// Listens for RDMA connections at the device's address, at this port or any; the address, if the agent names it, and the port.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn listen(&mut self, port: Option<u16>) -> Result<(Option<IpAddr>, u16), AgentError> {
        self.next_port = port.and_then(|port| port.checked_add(1));
        let answer = self.call("listen", json!({ "port": port.unwrap_or(0) }))?;
        let address = answer["address"]
            .as_str()
            .and_then(|text| text.parse().ok());
        let port = number("listen", &answer, "port")?;
        let port = u16::try_from(port).map_err(|_| AgentError::Lacks {
            operation: "listen",
            field: "port",
        })?;
        Ok((address, port))
    }

    /// Listens anew, at the next port.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn listen_again(&mut self) -> Result<u16, AgentError> {
        let (_, port) = self.listen(self.next_port)?;
        Ok(port)
    }

    /// Registers memory whose octets are all `fill`.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn register(&mut self, length: u64, access: u64, fill: u8) -> Result<Memory, AgentError> {
        self.register_in(length, access, fill, 0)
    }

    /// Registers memory in protection domain 0, which connections have, or 1.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn register_in(
        &mut self,
        length: u64,
        access: u64,
        fill: u8,
        domain: u64,
    ) -> Result<Memory, AgentError> {
        let with = json!({ "length": length, "access": access, "fill": fill, "pd": domain, "margin": MARGIN });
        let answer = self.call("reg_mr", with)?;
        memory("reg_mr", &answer, length, MARGIN)
    }

    /// Deregisters memory.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn deregister(&mut self, memory: Memory) -> Result<(), AgentError> {
        self.call("dereg_mr", json!({ "mr": memory.id }))?;
        Ok(())
    }

    /// All octets of memory with its margins, whether registered still or not.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn all(&mut self, memory: Memory) -> Result<Vec<u8>, AgentError> {
        self.peek(memory, 0, memory.length + 2 * memory.margin)
    }

    /// Octets of memory, counted from its margin, whether registered still or not.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn peek(
        &mut self,
        memory: Memory,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, AgentError> {
        let with = json!({ "mr": memory.id, "offset": offset, "length": length });
        let answer = self.call("peek", with)?;
        let lacks = AgentError::Lacks {
            operation: "peek",
            field: "hex",
        };
        let digits = answer["hex"].as_str().unwrap_or_default().as_bytes();
        let octets: Option<Vec<u8>> = digits
            .chunks(2)
            .map(|pair| {
                let text = core::str::from_utf8(pair).ok()?;
                u8::from_str_radix(text, 16).ok()
            })
            .collect();
        octets.ok_or(lacks)
    }

    /// Settings of the next connections: so many receives of so many octets, and read depths.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn accept_with(
        &mut self,
        receives: u32,
        octets: u32,
        ird: u16,
        ord: u16,
    ) -> Result<(), AgentError> {
        let with =
            json!({ "receives": receives, "octets": octets, "ird": ird, "ord": ord, "reject": 0 });
        self.call("accept_with", with)?;
        Ok(())
    }

    /// The next connections are rejected, with this private data.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), AgentError> {
        let data = crate::wire::hex(private_data, private_data.len());
        self.call("accept_with", json!({ "reject": 1, "private": data }))?;
        Ok(())
    }

    /// The next connections are accepted with this private data.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn accept_saying(&mut self, private_data: &[u8]) -> Result<(), AgentError> {
        let data = crate::wire::hex(private_data, private_data.len());
        self.call("accept_with", json!({ "reject": 0, "private": data }))?;
        Ok(())
    }

    /// The connection that was accepted next.
    ///
    /// # Errors
    /// [`AgentError`]; refused if there is none within the agent's patience.
    pub fn accepted(&mut self) -> Result<Connection, AgentError> {
        let answer = self.call("accepted", json!({ "timeout_ms": 5000 }))?;
        connection("accepted", &answer)
    }

    /// Begins to connect to the tester.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn connect_to(
        &mut self,
        to: SocketAddr,
        ird: u16,
        ord: u16,
    ) -> Result<Connection, AgentError> {
        self.connect_saying(to, (ird, ord), &[])
    }

    /// Has the device connect with this private data, and IRD and ORD.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn connect_saying(
        &mut self,
        to: SocketAddr,
        (ird, ord): (u16, u16),
        private_data: &[u8],
    ) -> Result<Connection, AgentError> {
        let data = crate::wire::hex(private_data, private_data.len());
        let with = json!({
            "address": to.ip().to_string(), "port": to.port(), "ird": ird, "ord": ord, "private": data,
        });
        let answer = self.call("connect", with)?;
        connection("connect", &answer)
    }

    /// Waits for a completion of a connection.
    ///
    /// # Errors
    /// [`AgentError`]; refused if none comes in that time.
    pub fn poll(&mut self, of: Connection, wait: Duration) -> Result<Completion, AgentError> {
        let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let answer = self.call("poll", json!({ "conn": of.id, "timeout_ms": wait }))?;
        let field = |field| number("poll", &answer, field);
        Ok(Completion {
            wr_id: field("wr_id")?,
            status: field("status")?,
            opcode: field("opcode")?,
            length: field("length")?,
            flags: field("flags")?,
            immediate: field("imm")?,
            source: answer["source"].as_u64().unwrap_or_default(),
        })
    }

    /// Posts a work request. `with` has `opcode` as `enum ibv_wr_opcode` and what that needs.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn post(&mut self, on: Connection, mut with: Value) -> Result<(), AgentError> {
        with["conn"] = on.id.into();
        self.call("post_send", with)?;
        Ok(())
    }

    /// The next event of `rdma_cm` about a connection, as its number and status.
    ///
    /// # Errors
    /// [`AgentError`]; refused if none comes in that time.
    pub fn event(&mut self, of: Connection, wait: Duration) -> Result<(u64, i64), AgentError> {
        let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let answer = self.call("event", json!({ "conn": of.id, "timeout_ms": wait }))?;
        let status = answer["status"].as_i64().unwrap_or_default();
        Ok((number("event", &answer, "event")?, status))
    }

    /// Destroys a connection and all that belongs to it.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn destroy(&mut self, connection: Connection) -> Result<(), AgentError> {
        self.call("destroy", json!({ "conn": connection.id }))?;
        Ok(())
    }

    /// Destroys all connections and memory, and takes back what [`accept_with`](Self::accept_with) said. Returns how many file
    /// descriptors the agent's process has then.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn clear(&mut self) -> Result<u64, AgentError> {
        let answer = self.call("clear", json!({}))?;
        number("clear", &answer, "fds")
    }
}

/// The address of ours that packets to this one have.
fn route(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

pub(crate) fn number(
    operation: &'static str,
    answer: &Value,
    field: &'static str,
) -> Result<u64, AgentError> {
    let lacks = AgentError::Lacks { operation, field };
    answer[field].as_u64().ok_or(lacks)
}

pub(crate) fn memory(
    operation: &'static str,
    answer: &Value,
    length: u64,
    margin: u64,
) -> Result<Memory, AgentError> {
    let stag = number(operation, answer, "rkey")?;
    Ok(Memory {
        id: number(operation, answer, "mr")?,
        stag: u32::try_from(stag).map_err(|_| AgentError::Lacks {
            operation,
            field: "rkey",
        })?,
        to: number(operation, answer, "addr")?,
        length,
        margin,
    })
}

pub(crate) fn connection(
    operation: &'static str,
    answer: &Value,
) -> Result<Connection, AgentError> {
    Ok(Connection {
        id: number(operation, answer, "conn")?,
        receives: memory(operation, answer, number(operation, answer, "room")?, 0)?,
    })
}
