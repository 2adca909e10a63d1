//! A service: which queue pair stands behind a port.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use dgiwarp_conform::wire::datagram::{Datagram, Lookup};
use serde_json::{Value, json};

use super::device::{State, World, socket};
use crate::misbehaving::control;

const QUESTION: u8 = 1;
const ANSWER: u8 = 2;
const REJECT: u8 = 3;
const WAITING: u8 = 4;

/// The service that the device has.
pub(super) struct Service {
    socket: UdpSocket,
    number: u64,
    pair: (u32, u32),
    hold: bool,
    reject: bool,
    /// Questions by asker and transaction, each with its answer if it has one.
    asked: BTreeMap<(SocketAddr, u64), (Lookup, Option<Lookup>)>,
    questions: u64,
    repeats: u8,
}

pub(super) fn open(world: &Arc<World>, asked: &Value, id: u64) -> Option<Value> {
    let own = socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let port = own.local_addr().ok()?.port();
    let mut state = world.state();
    let number = state.number();
    let pair = state.pairs.get(&id)?;
    state.service = Some(Service {
        socket: own.try_clone().ok()?,
        number,
        pair: (u32::from(pair.port), pair.qkey),
        hold: control::number(asked, "hold", 0) == 1,
        reject: control::number(asked, "reject", 0) == 1,
        asked: BTreeMap::new(),
        questions: 0,
        repeats: 0,
    });
    let world = Arc::clone(world);
    std::thread::spawn(move || serve(&world, number, &own));
    Some(json!({ "ok": 1, "port": port }))
}

/// Answers what was held back.
pub(super) fn answer(world: &World) -> Option<Value> {
    let mut state = world.state();
    let service = state.service.as_mut()?;
    service.hold = false;
    let waiting: Vec<_> = service
        .asked
        .iter()
        .filter(|(_, (_, answer))| answer.is_none())
        .map(|(key, (question, _))| (*key, question.clone()))
        .collect();
    for ((from, _), question) in waiting {
        service.decide(world, from, &question);
    }
    Some(json!({ "ok": 1, "questions": service.questions }))
}

/// Serves askers until there is another service, or none.
fn serve(world: &World, number: u64, socket: &UdpSocket) {
    let mut octets = vec![0; 2048];
    loop {
        let came = socket.recv_from(&mut octets);
        let mut state = world.state();
        if of(&mut state, number).is_none() {
            return;
        }
        let Ok((count, from)) = came else {
            continue;
        };
        if let (Ok(Datagram::Lookup(question)), Some(service)) =
            (Datagram::parse(&octets[..count]), of(&mut state, number))
            && question.kind == QUESTION
        {
            service.take(world, from, question);
        }
    }
}

fn of(state: &mut State, number: u64) -> Option<&mut Service> {
    state
        .service
        .as_mut()
        .filter(|service| service.number == number)
}

impl Service {
    fn take(&mut self, world: &World, from: SocketAddr, question: Lookup) {
        let port = self.socket.local_addr().map_or(0, |at| at.port());
        if question.port != port && !world.does("answers-for-any-port") {
            let reject = Lookup {
                status: 1,
                ..typed(REJECT, &question, b"")
            };
            return self.send(world, from, reject);
        }
        let key = (from, question.transaction);
        match self.asked.get(&key).cloned() {
            Some((_, Some(answer))) => {
                self.repeats += 1;
                let mut answer = answer;
                if world.does("answer-changes")
                    && let Some(last) = answer.private_data.last_mut()
                {
                    *last = last.wrapping_add(self.repeats);
                }
                self.send(world, from, answer);
            }
            Some((_, None)) => {
                self.questions += u64::from(world.does("program-asked-twice"));
                let mut waiting = typed(WAITING, &question, b"");
                if world.does("waiting-with-qpn") {
                    waiting.qpn = 1;
                }
                self.send(world, from, waiting);
            }
            None => {
                self.questions += 1;
                self.asked.insert(key, (question.clone(), None));
                if !self.hold {
                    self.decide(world, from, &question);
                }
            }
        }
    }

    /// The program's answer.
    fn decide(&mut self, world: &World, from: SocketAddr, question: &Lookup) {
        let mut answer = if self.reject {
            Lookup {
                status: 2,
                ..typed(REJECT, question, b"no")
            }
        } else {
            Lookup {
                qpn: self.pair.0,
                qkey: self.pair.1,
                ..typed(ANSWER, question, b"said")
            }
        };
        if !self.reject && world.does("answer-with-status") {
            answer.status = 5;
        }
        if self.reject && world.does("reject-with-qkey") {
            answer.qkey = 5;
        }
        if !self.reject && world.does("answer-with-other-qpn") {
            answer.qpn ^= 1;
        }
        if world.does("answer-length-300") {
            answer.length = 300;
        }
        let key = (from, question.transaction);
        self.asked
            .insert(key, (question.clone(), Some(answer.clone())));
        self.send(world, from, answer);
    }

    fn send(&self, world: &World, to: SocketAddr, lookup: Lookup) {
        if world.does("lookup-type-9") {
            let wrong = Lookup {
                kind: 9,
                ..lookup.clone()
            };
            // The asker may have gone.
            let _ = self.socket.send_to(&Datagram::from(wrong).to_bytes(), to);
        }
        let _ = self.socket.send_to(&Datagram::from(lookup).to_bytes(), to);
    }
}

/// A datagram that goes back to an asker.
fn typed(kind: u8, question: &Lookup, private_data: &[u8]) -> Lookup {
    Lookup {
        kind,
        fill: Vec::new(),
        ..Lookup::question(question.transaction, question.port, private_data)
    }
}
