//! The device as the initiator: its agent connects to the tester, which takes and answers its Request.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::Duration;

use serde_json::json;

use crate::agent::Connection;
use crate::bench::{Bench, Broken, Settings};
use crate::clock;
use crate::oracle::{Came, Reaction};
use crate::peer::Peer;
use crate::wire::ddp::{ReadRequest, Segment, opcode};
use crate::wire::startup::{self, Depths, S, Startup};

const SOON: Duration = Duration::from_secs(10);
/// `RDMA_CM_EVENT_ESTABLISHED`.
pub(in crate::cases) const ESTABLISHED: u64 = 9;

/// Has the device connect, and takes its Request.
pub(in crate::cases) fn called(
    bench: &mut Bench<'_>,
) -> Result<(Peer, Connection, Startup), Broken> {
    let (listener, connection) = calling(bench)?;
    let (peer, request) = accept(bench, &listener)?;
    Ok((peer, connection, request))
}

/// Has the device connect to the socket that this returns.
pub(in crate::cases) fn calling(
    bench: &mut Bench<'_>,
) -> Result<(TcpListener, Connection), Broken> {
    calling_with(bench, &[])
}

/// Has the device connect to the socket that this returns, with this private data.
pub(in crate::cases) fn calling_with(
    bench: &mut Bench<'_>,
    private_data: &[u8],
) -> Result<(TcpListener, Connection), Broken> {
    let here = bench.agent()?.our_address()?;
    let listener = TcpListener::bind(&bench.settings.own(here)[..]).map_err(Broken::Own)?;
    listener.set_nonblocking(true).map_err(Broken::Connect)?;
    let to = listener.local_addr().map_err(Broken::Connect)?;
    let connection = bench.agent()?.connect_saying(to, (4, 4), private_data)?;
    Ok((listener, connection))
}

/// Takes a connection of the device and its Request.
pub(in crate::cases) fn accept(
    bench: &Bench<'_>,
    listener: &TcpListener,
) -> Result<(Peer, Startup), Broken> {
    let until = clock::now() + bench.patience().answer;
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) if clock::now() < until => clock::pause(Duration::from_millis(2)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let at = listener.local_addr().map_err(Broken::Connect)?;
                return Err(Broken::NotCalled(at));
            }
            Err(error) => return Err(Broken::Connect(error)),
        }
    };
    stream.set_nonblocking(false).map_err(Broken::Connect)?;
    let mut peer = bench.taken(stream)?;
    match peer.startup() {
        Came::Startup(request) => Ok((peer, request)),
        came => Err(Broken::Startup(format!("instead of a Request: {came}"))),
    }
}

/// A good Reply.
pub(in crate::cases) fn reply(settings: &Settings, to: &Startup) -> Startup {
    let mut data = Vec::new();
    if let Some(asked) = to.depths() {
        data.extend(
            Depths {
                peer_to_peer: asked.peer_to_peer,
                write: asked.peer_to_peer && asked.write,
                read: asked.peer_to_peer && asked.read && !asked.write,
                send: asked.peer_to_peer && !asked.write && !asked.read,
                ..Depths::client_server(4, 4)
            }
            .to_bytes(),
        );
    }
    Startup::new(
        startup::REPLY,
        settings.flags() | to.flags & S,
        to.revision,
        &data,
    )
}

/// A Reply with other depths and control flags.
pub(in crate::cases) fn reply_with(
    settings: &Settings,
    to: &Startup,
    change: impl FnOnce(&mut Depths),
) -> Startup {
    let mut frame = reply(settings, to);
    if let Some(mut depths) = frame.depths() {
        change(&mut depths);
        frame.private_data = depths.to_bytes().to_vec();
    }
    frame
}

/// The next event of the device's program that is not of its address and route.
pub(in crate::cases) fn event(
    bench: &mut Bench<'_>,
    of: Connection,
) -> Result<Option<u64>, Broken> {
    match bench.agent()?.event(of, SOON) {
        Ok((event, _)) => Ok(Some(event)),
        Err(crate::agent::AgentError::Refused { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Goes into full operation and waits for the first FPDU, which is the device's to send; what it is.
pub(in crate::cases) fn first(
    bench: &mut Bench<'_>,
    peer: &mut Peer,
    on: Connection,
    request: &Startup,
    reply: &Startup,
) -> Result<Came, Broken> {
    peer.full_operation(reply, request);
    let peer_to_peer = reply.depths().is_some_and(|depths| depths.peer_to_peer);
    if !peer_to_peer && event(bench, on)? == Some(ESTABLISHED) {
        bench
            .agent()?
            .post(on, json!({ "opcode": 2, "length": 0 }))?;
    }
    Ok(peer.next_fpdu())
}

/// Answers the Read of an RTR indication, if that is what came.
pub(in crate::cases) fn answer_rtr(peer: &mut Peer, reaction: &mut Reaction) {
    let asked = reaction
        .segments()
        .find(|segment| segment.opcode() == opcode::READ_REQUEST);
    let asked = asked.and_then(|segment| ReadRequest::parse(&segment.payload));
    if let Some(asked) = asked {
        peer.segment(&Segment::tagged(
            opcode::READ_RESPONSE,
            asked.sink_stag,
            asked.sink_to,
            &[],
        ));
    }
}
