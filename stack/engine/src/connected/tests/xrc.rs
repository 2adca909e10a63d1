//! XRC: an initiator, and a target whose messages go to the shared receive queues that they name.

use std::sync::Arc;

use dgiwarp_ddp::error::UntaggedError;
use dgiwarp_ddp::{STag, TaggedOffset};
use parking_lot::Mutex;

use super::*;
use crate::recv_queue::ReceiveSink;
use crate::types::AsyncEvent;
use crate::xrc::{XrcDomain, XrcRole};

/// A second protection domain.
const OTHER: PdId = PdId(2);

/// Completions of a shared receive queue.
#[derive(Debug, Default)]
struct Sink(Mutex<Vec<Wc>>);

impl ReceiveSink for Sink {
    fn received(&self, wc: Wc) {
        self.0.lock().push(wc);
    }
}

impl Sink {
    fn ids(&self) -> Vec<(u64, WcStatus)> {
        let wcs = self.0.lock();
        wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }
}

/// An initiator, a target, and two queues of the domain with the numbers 1 and 2.
struct Scene {
    client: End,
    server: End,
    domain: Arc<XrcDomain>,
    queues: [(Arc<RecvQueue>, Arc<Sink>); 2],
}

fn with_role(end: End, role: XrcRole) -> End {
    End {
        engine: end.engine.with_xrc(role),
        ..end
    }
}

impl Scene {
    fn new(llp: Lower, pds: [PdId; 2]) -> Self {
        let (client, server) = pair_over(llp, 1, [RcOptions::default(); 2]);
        let domain = Arc::new(XrcDomain::default());
        let mut number = 0;
        let queues = pds.map(|pd| {
            number += 1;
            let sink = Arc::new(Sink::default());
            let queue = RecvQueue::shared(8, 4, number.into(), pd);
            let queue = Arc::new(queue.completing_to(Arc::clone(&sink) as _));
            domain.enter(number, &queue);
            (queue, sink)
        });
        Self {
            client: with_role(client, XrcRole::Initiator),
            server: with_role(server, XrcRole::Target(Arc::clone(&domain))),
            domain,
            queues,
        }
    }

    /// Posts a receive of 100 octets to a queue.
    fn post_recv(&self, number: usize, wr_id: u64) {
        let sges = [self.server.sge(0, 100)];
        let wr = RecvWr { wr_id, sges: &sges };
        self.queues[number - 1].0.post(&wr).unwrap();
    }

    fn post(&mut self, wr_id: u64, srqn: u32, work: RcWork) {
        let sge = self.client.sge(0, 8);
        self.client.engine.accept(RcSendWqe {
            wr_id,
            work,
            data: RcData::Sges(copy_sges(&[sge])),
            length: 8,
            signaled: true,
            solicited: false,
            fence: false,
            remote_srqn: srqn,
        });
        self.client.work(|_, _, _| ());
    }

    fn send(&mut self, wr_id: u64, srqn: u32) {
        self.post(wr_id, srqn, RcWork::Send { invalidate: None });
    }

    /// Carries everything both ways. Returns the octets that the client made.
    fn settle(&mut self) -> usize {
        let mut octets = 0;
        for _ in 0..4 {
            octets += self.client.waiting();
            self.client.carry_to(&mut self.server, 9);
            self.server.work(|engine, _, _| {
                engine.flush_acks(now(), true);
            });
            self.server.carry_to(&mut self.client, 9);
        }
        octets
    }

    fn sent(&self) -> Vec<(u64, WcStatus)> {
        let sent = &self.client.completed.sent;
        sent.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }
}

over_each_llp! {
    messages_go_to_the_queues_that_they_name,
    a_message_waits_for_a_receive_of_its_queue,
    a_number_without_a_queue_ends_the_connection,
    an_initiator_needs_a_target,
    a_target_takes_no_message_that_names_no_queue,
    memory_is_that_of_the_queue_that_is_named,
    another_queue_is_named_behind_the_answers_to_requests,
}

const OK: WcStatus = WcStatus::Success;

fn messages_go_to_the_queues_that_they_name(llp: Lower) {
    let mut scene = Scene::new(llp, [PD, PD]);
    for (number, wr_id) in [(1, 11), (2, 21), (2, 22), (1, 12)] {
        scene.post_recv(number, wr_id);
    }
    scene.send(1, 1);
    assert_eq!(scene.client.waiting(), llp.octets(14), "the hello alone");
    scene.settle();
    scene.send(2, 2);
    let named = scene.settle();
    scene.send(3, 2);
    let again = scene.settle();
    assert_eq!(named - again, llp.octets(14), "a number is sent once");
    scene.send(4, 1);
    scene.settle();
    let [first, second] = [0, 1].map(|i: usize| scene.queues[i].1.ids());
    assert_eq!(first, [(11, OK), (12, OK)]);
    assert_eq!(second, [(21, OK), (22, OK)]);
    assert_eq!(scene.sent(), [(1, OK), (2, OK), (3, OK), (4, OK)]);
    assert!(scene.server.completed.received.is_empty());
}

fn a_message_waits_for_a_receive_of_its_queue(llp: Lower) {
    let mut scene = Scene::new(llp, [PD, PD]);
    scene.post_recv(2, 21);
    scene.send(1, 1);
    scene.send(2, 2);
    scene.settle();
    assert_eq!(scene.queues[1].1.ids(), [], "messages keep their order");
    scene.post_recv(1, 11);
    scene
        .server
        .work(|engine, tables, done| engine.receive_posted(now(), tables, done));
    scene.settle();
    assert_eq!(scene.queues[0].1.ids(), [(11, OK)]);
    assert_eq!(scene.queues[1].1.ids(), [(21, OK)]);
    assert_eq!(scene.sent(), [(1, OK), (2, OK)]);
}

fn a_number_without_a_queue_ends_the_connection(llp: Lower) {
    let mut scene = Scene::new(llp, [PD, PD]);
    scene.domain.leave(2);
    scene.post_recv(1, 11);
    scene.post_recv(2, 21);
    scene.send(1, 1);
    scene.settle();
    scene.send(2, 2);
    scene.settle();
    assert_eq!(scene.queues[0].1.ids(), [(11, OK)]);
    assert_eq!(scene.queues[1].1.ids(), []);
    let refused = WcStatus::RemoteInvalidRequest;
    assert_eq!(scene.sent(), [(1, OK), (2, refused)]);
    let event = AsyncEvent::QpRequestError { qpn: 70_000 };
    assert_eq!(scene.server.completed.events, [event]);
}

fn an_initiator_needs_a_target(llp: Lower) {
    for options in [RcOptions::default(), PLAIN] {
        let (client, server) = pair_over(llp, 1, [RcOptions::default(), options]);
        let mut client = with_role(client, XrcRole::Initiator);
        let mut server = server;
        server.post_recv(1, 0, 100);
        let sges = [client.sge(0, 8)];
        client.post(1, RcWork::Send { invalidate: None }, &sges, false);
        client.carry_to(&mut server, 100);
        server.carry_to(&mut client, 100);
        client.engine.handle_timeout(now() + Duration::from_secs(3));
        client.work(|_, _, _| ());
        let status = client.completed.sent[0].status;
        assert_eq!(status, WcStatus::RemoteInvalidRequest);
        assert_eq!(client.engine.end(), Some(RcEnd::NoXrcTarget));
        assert!(server.completed.received.is_empty());
    }
}

fn a_target_takes_no_message_that_names_no_queue(llp: Lower) {
    let mut scene = Scene::new(llp, [PD, PD]);
    scene.post_recv(1, 11);
    let (plain, _) = pair_over(llp, 1, [PLAIN; 2]);
    scene.client = plain;
    // The target's own queue has no receive and never gets one.
    scene.server.receives = RecvQueue::new(0, 4);
    scene.send(1, 1);
    scene.settle();
    let end = scene.server.engine.end().unwrap();
    assert_eq!(end, RcEnd::Stream(UntaggedError::NoBuffer.into()));
    assert_eq!(scene.queues[0].1.ids(), []);
}

/// The key is of the domain of queue 2 alone.
fn memory_is_that_of_the_queue_that_is_named(llp: Lower) {
    for (srqn, expected) in [(2, OK), (1, WcStatus::RemoteAccess)] {
        let mut scene = Scene::new(llp, [PD, OTHER]);
        let server = &scene.server;
        let region = server.memory.region();
        let keys =
            server
                .mrs
                .register(region, 0, Access::REMOTE_WRITE | Access::LOCAL_WRITE, OTHER);
        let work = RcWork::Write {
            stag: STag::new(keys.rkey),
            start: TaggedOffset::new(0),
            immediate: None,
        };
        scene.client.memory.write(0, b"12345678");
        scene.post(1, srqn, work);
        scene.settle();
        assert_eq!(scene.sent(), [(1, expected)], "queue {srqn}");
        let is_written = scene.server.memory.to_vec(0, 8) == b"12345678";
        assert_eq!(is_written, expected == OK);
    }
}

fn another_queue_is_named_behind_the_answers_to_requests(llp: Lower) {
    let mut scene = Scene::new(llp, [PD, OTHER]);
    let region = scene.server.memory.region();
    let keys = scene
        .server
        .mrs
        .register(region, 0, Access::REMOTE_READ, PD);
    let read = RcWork::Read {
        stag: STag::new(keys.rkey),
        start: TaggedOffset::new(0),
    };
    scene.post_recv(1, 11);
    scene.send(1, 1);
    scene.settle();
    scene.post(2, 1, read);
    scene.send(3, 1);
    let same = scene.client.waiting();
    scene.send(4, 2);
    assert_eq!(scene.client.waiting(), same, "the Read is open");
    scene.post_recv(1, 12);
    scene.settle();
    assert_eq!(scene.sent(), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(
        scene.queues[1].1.ids(),
        [],
        "no receive of queue 2 is posted"
    );
}
