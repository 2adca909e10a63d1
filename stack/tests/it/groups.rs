//! Broadcast and multicast over real sockets.

mod namespaces;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::common;
use crate::common::Process;
use crate::common::node::{Node, SEND, SOON};
use crate::common::strangers::dropped;
use dgiwarp::{
    Access, Config, Destination, DropReason, Error, GroupInterface, Mr, MrOptions, Operation, Wc,
    WcOpcode, WcStatus,
};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ON_LOOPBACK: Option<GroupInterface> = Some(GroupInterface::Address(LOOPBACK));
const LOOPBACK_BROADCAST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 255, 255, 255));
/// An STag that members and senders agreed on.
const WELL_KNOWN: u32 = 0x4711_0001;

/// A group of this process alone.
fn multicast(last: u8) -> IpAddr {
    let [_, _, a, b] = std::process::id().to_be_bytes();
    [239, 128 | a, b, last].into()
}

/// A group port of this process and test, so that tests that run at the same time do not hear each other's broadcasts.
fn config(test: u16) -> Config {
    let process = u16::try_from(std::process::id() % 1000).unwrap();
    let mut config = Config::default();
    config.group_port = 10_000 + process * 20 + test;
    config
}

fn node(test: u16) -> Node {
    Node::with(1 << 16, config(test), |attr| attr.record_slots = 16)
}

/// Where a group is.
#[derive(Debug, Clone, Copy)]
struct Place {
    interface: Option<GroupInterface>,
    scope_id: u32,
    source: Option<IpAddr>,
}

/// On the loopback interface, as IPv4 has it.
const LOOPBACK_PLACE: Place = Place {
    interface: ON_LOOPBACK,
    scope_id: 0,
    source: Some(LOOPBACK),
};

impl Place {
    fn members(self, count: usize, test: u16, group: IpAddr) -> Vec<Node> {
        let members: Vec<_> = (0..count).map(|_| node(test)).collect();
        for member in &members {
            member.qp.attach_group(group, self.interface).unwrap();
        }
        members
    }

    fn to(self, node: &Node, group: IpAddr) -> Destination {
        let ah = node.pd.create_ah_from(group, self.scope_id, self.source);
        Destination {
            ah: ah.unwrap(),
            qpn: 0,
            qkey: 0,
        }
    }

    /// Every member gets each message once, whole, and can reply to its sender. Returns the sender's address.
    #[track_caller]
    fn each_member_receives_and_replies(self, group: IpAddr, count: usize, test: u16) -> IpAddr {
        let members = self.members(count, test, group);
        let sender = node(test);
        let to = self.to(&sender, group);
        assert!(to.ah.is_group());
        let mut address = group;
        for (round, length) in [(1u8, 1000), (2, 60_000)] {
            sender.memory.write(0, &vec![round; length]);
            for member in &members {
                member.post_recv(7, 0..60_000);
            }
            sender.send(1, &to, 0..length);
            success(&sender);
            for member in &members {
                let wc = success(member);
                assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::Recv, length));
                assert_eq!(wc.destination, Some(group));
                assert_eq!(member.memory.to_vec(0, length), vec![round; length]);
                let source = wc.source.unwrap();
                assert_eq!(source.port(), sender.qp.qpn());
                address = source.ip();
                sender.post_recv(9, 0..100);
                let back = reply(member, source);
                member.send(2, &back, 0..4);
                success(member);
                assert_eq!(success(&sender).source.unwrap().port(), member.qp.qpn());
            }
        }
        for member in &members {
            nothing_came(member);
            assert_eq!(dropped(&member.qp.counters()), 0);
        }
        nothing_came(&sender);
        address
    }
}

/// The way back to whoever sent.
fn reply(node: &Node, source: SocketAddr) -> Destination {
    let scope_id = match source {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    };
    Destination {
        ah: node.pd.create_ah_from(source.ip(), scope_id, None).unwrap(),
        qpn: source.port(),
        qkey: 0,
    }
}

fn members(count: usize, test: u16, group: IpAddr) -> Vec<Node> {
    LOOPBACK_PLACE.members(count, test, group)
}

fn to_group(node: &Node, group: IpAddr) -> Destination {
    LOOPBACK_PLACE.to(node, group)
}

#[track_caller]
fn success(node: &Node) -> Wc {
    let wc = node.wait();
    assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
    wc
}

#[track_caller]
fn nothing_came(node: &Node) {
    assert_eq!(node.cq.wait(Duration::from_millis(50)).unwrap(), None);
}

#[test]
fn multicast_reaches_every_member() {
    for count in 1..=3 {
        let source = LOOPBACK_PLACE.each_member_receives_and_replies(multicast(1), count, 0);
        assert_eq!(source, LOOPBACK);
    }
}

#[test]
fn broadcast_reaches_every_member() {
    for count in 1..=3 {
        LOOPBACK_PLACE.each_member_receives_and_replies(LOOPBACK_BROADCAST, count, 1);
    }
    LOOPBACK_PLACE.each_member_receives_and_replies(Ipv4Addr::BROADCAST.into(), 2, 1);
}

#[test]
fn members_of_several_processes_receive() {
    let name = here!("members_of_several_processes_receive");
    let group = multicast(11);
    if common::role().is_some() {
        let mut config = config(9);
        config.group_port = common::given("PORT").parse().unwrap();
        let member = Node::with(1 << 16, config, |_| ());
        let group = common::given("GROUP").parse().unwrap();
        member.qp.attach_group(group, ON_LOOPBACK).unwrap();
        member.post_recv(1, 0..1000);
        println!("ready");
        let wc = success(&member);
        member.send(2, &reply(&member, wc.source.unwrap()), 0..10);
        success(&member);
        return;
    }
    let sender = node(9);
    let variables = [
        ("PORT", config(9).group_port.to_string()),
        ("GROUP", group.to_string()),
    ];
    let mut processes: Vec<_> = (0..3)
        .map(|_| Process::start(name, "member", &variables))
        .collect();
    for process in &mut processes {
        process.tells("ready", SOON);
    }
    for receive in 0..3 {
        sender.post_recv(receive, 0..100);
    }
    sender.send(1, &to_group(&sender, group), 0..100);
    success(&sender);
    let mut replied: Vec<_> = (0..3).map(|_| success(&sender).source).collect();
    replied.sort();
    replied.dedup();
    assert_eq!(replied.len(), 3);
    for process in processes {
        process.finish(SOON);
    }
}

/// Messages that need several segments, larger than any datagram, in a row and as trains.
#[test]
fn long_messages_and_trains_reach_every_member() {
    let group = multicast(2);
    let mut small = config(2);
    small.max_mtu = 1500;
    let members = members(3, 2, group);
    let sender = Node::with(1 << 16, small, |_| ());
    let to = to_group(&sender, group);
    assert_eq!(to.ah.datagram_limit(), 1472);
    let octets: Vec<_> = (0..60_000u32).map(|i| i.to_le_bytes()[1]).collect();
    sender.memory.write(0, &octets);
    for member in &members {
        member.post_recv(1, 0..60_000);
        for receive in 0..32 {
            member.post_recv(2, 60_000 + receive * 64..60_064 + receive * 64);
        }
    }
    sender.send(1, &to, 0..60_000);
    success(&sender);
    for member in &members {
        assert_eq!(success(member).byte_len, 60_000);
        assert_eq!(member.memory.to_vec(0, 60_000), octets);
    }
    let sges = [sender.mr.sge(0..64)];
    let wr = dgiwarp::SendWr {
        wr_id: 5,
        operation: SEND,
        destination: to,
        sges: &sges,
        signaled: false,
        solicited: false,
    };
    sender.qp.post_send(&vec![wr; 32]).unwrap();
    for member in &members {
        for _ in 0..32 {
            assert_eq!(success(member).byte_len, 64);
        }
    }
    assert_eq!(sender.qp.counters().segments_sent, 43 + 32);
}

#[test]
fn only_attached_groups_are_received_and_detaching_ends_it() {
    let (group, other) = (multicast(3), multicast(4));
    let members = members(2, 3, group);
    members[1].qp.attach_group(other, ON_LOOPBACK).unwrap();
    let sender = node(3);
    for member in &members {
        for _ in 0..4 {
            member.post_recv(1, 0..100);
        }
    }
    sender.send(1, &to_group(&sender, other), 0..10);
    success(&sender);
    assert_eq!(success(&members[1]).destination, Some(other));
    nothing_came(&members[0]);
    members[1].qp.detach_group(group, ON_LOOPBACK).unwrap();
    sender.send(1, &to_group(&sender, group), 0..10);
    success(&sender);
    assert_eq!(success(&members[0]).destination, Some(group));
    nothing_came(&members[1]);
    // Attached anew it receives again, and a sender that attached hears itself.
    members[1].qp.attach_group(group, ON_LOOPBACK).unwrap();
    sender.qp.attach_group(group, ON_LOOPBACK).unwrap();
    sender.post_recv(2, 0..100);
    sender.send(1, &to_group(&sender, group), 0..10);
    let mut own = [success(&sender).opcode, success(&sender).opcode];
    own.sort_by_key(|opcode| *opcode == WcOpcode::Recv);
    assert_eq!(own, [WcOpcode::Send, WcOpcode::Recv]);
    for member in &members {
        assert_eq!(success(member).destination, Some(group));
    }
}

/// A socket that is polled all the time is treated in a special way; whoever takes its place must not be.
#[test]
fn a_busy_membership_can_be_replaced() {
    let (busy, next) = (multicast(13), multicast(14));
    let members = members(1, 11, busy);
    let member = &members[0];
    let sender = node(11);
    let to = to_group(&sender, busy);
    for _ in 0..300 {
        member.post_recv(1, 0..100);
        sender.send(1, &to, 0..10);
        success(&sender);
        let deadline = common::now() + SOON;
        while member.cq.poll_one().unwrap().is_none() {
            assert!(common::now() < deadline);
        }
    }
    member.qp.detach_group(busy, ON_LOOPBACK).unwrap();
    member.qp.attach_group(next, ON_LOOPBACK).unwrap();
    for _ in 0..3 {
        member.post_recv(2, 0..100);
        sender.send(2, &to_group(&sender, next), 0..10);
        success(&sender);
        // Asleep this time.
        assert_eq!(success(member).destination, Some(next));
    }
}

#[test]
fn another_qkey_is_dropped_and_counted() {
    let group = multicast(5);
    let members = members(2, 4, group);
    members[1].qp.set_qkey(0x1234);
    let sender = node(4);
    for member in &members {
        member.post_recv(1, 0..100);
    }
    sender.send(1, &to_group(&sender, group), 0..10);
    success(&members[0]);
    nothing_came(&members[1]);
    assert_eq!(members[1].qp.counters().dropped(DropReason::BadQkey), 1);
}

/// Each member gives the same STag to memory of its own.
fn well_known(member: &Node) -> Mr {
    let options = MrOptions {
        iova: Some(0),
        well_known: Some(WELL_KNOWN),
        ..MrOptions::new(Access::REMOTE_WRITE)
    };
    member
        .pd
        .register_with(member.memory.region(), options)
        .unwrap()
}

fn write_record(rkey: u32, remote_addr: u64) -> Operation {
    Operation::WriteRecord {
        rkey,
        remote_addr,
        immediate: Some(7),
    }
}

#[test]
fn write_records_reach_the_well_known_memory_of_every_member() {
    let group = multicast(6);
    let members = members(3, 5, group);
    let regions: Vec<_> = members.iter().map(well_known).collect();
    let senders = [node(5), node(5)];
    for (salt, sender) in (1u8..).zip(&senders) {
        sender.memory.write(0, &[salt; 40_000]);
        let to = to_group(sender, group);
        let at = u64::from(salt - 1) * 30_000;
        let sges = [sender.mr.sge(0..30_000)];
        sender
            .post(1, write_record(regions[0].rkey(), at), &to, &sges)
            .unwrap();
        success(sender);
        for member in &members {
            let wc = success(member);
            assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::WriteRecord, 30_000));
            assert_eq!(wc.immediate, Some(7));
            let record = member.qp.record(wc.record()).unwrap();
            assert_eq!(record.ranges, [(0, 30_000)]);
            assert_eq!(record.source.unwrap().port(), sender.qp.qpn());
            assert!(member.qp.release_record(wc.record()));
            let start = usize::try_from(at).unwrap();
            assert_eq!(member.memory.to_vec(start, 30_000), [salt; 30_000]);
        }
    }
    // One STag serves Write-Records that are not sent to the group too, and their numbers are counted apart.
    let to = senders[0].to(&members[0].qp);
    for _ in 0..3 {
        let sges = [senders[0].mr.sge(0..10)];
        senders[0]
            .post(1, write_record(WELL_KNOWN, 0), &to, &sges)
            .unwrap();
        success(&senders[0]);
        assert_eq!(success(&members[0]).byte_len, 10);
    }
    assert_eq!(dropped(&members[0].qp.counters()), 0);
}

/// A Write-Record of one segment.
fn segment(rkey: u32, remote_addr: u64, payload: &[u8]) -> Vec<u8> {
    let mut octets = vec![0xc1, 0x4c];
    octets.extend(rkey.to_be_bytes());
    octets.extend(remote_addr.to_be_bytes());
    let length = u32::try_from(payload.len()).unwrap();
    for word in [0, 5, 6, length, 0, 0] {
        octets.extend(word.to_be_bytes());
    }
    octets.extend(payload);
    octets.extend(common::crc32c(&octets).to_le_bytes());
    octets
}

#[test]
fn what_is_sent_to_a_group_writes_no_other_memory() {
    let members = members(1, 6, LOOPBACK_BROADCAST);
    let member = &members[0];
    let sender = node(6);
    let operation = sender.write_to(member, 0);
    let to = to_group(&sender, LOOPBACK_BROADCAST);
    sender.memory.write(0, &[9; 100]);
    sender
        .post(1, operation, &to, &[sender.mr.sge(0..100)])
        .unwrap();
    success(&sender);
    nothing_came(member);
    let not_well_known = || member.qp.counters().dropped(DropReason::NotWellKnown);
    assert_eq!(not_well_known(), 1);
    // The queue pair's own port hears broadcasts too.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_broadcast(true).unwrap();
    let octets = segment(member.mr.rkey(), member.mr.addr(), &[9; 100]);
    let hosts = [LOOPBACK, LOOPBACK_BROADCAST, LOOPBACK, LOOPBACK_BROADCAST];
    for (host, (written, dropped)) in hosts.into_iter().zip([(1, 1), (0, 2), (0, 2), (0, 3)]) {
        member.memory.write(0, &[0; 100]);
        socket.send_to(&octets, (host, member.qp.qpn())).unwrap();
        if written == 1 {
            assert_eq!(success(member).byte_len, 100);
        } else {
            nothing_came(member);
        }
        assert_eq!(member.memory.to_vec(0, 100), [9 * written; 100]);
        assert_eq!(not_well_known(), dropped);
    }
    assert_eq!(member.qp.counters().dropped(DropReason::Late), 1);
}

#[test]
fn regions_may_be_restricted() {
    let target = node(7);
    let (friend, stranger) = (node(7), node(7));
    let host = SocketAddr::from((LOOPBACK, friend.qp.qpn()));
    let register = |options: MrOptions| {
        let region = target.memory.region();
        target.pd.register_with(region, options).unwrap()
    };
    let open = MrOptions::new(Access::REMOTE_WRITE);
    let of_friend = register(MrOptions {
        only_from: Some(host),
        ..open
    });
    let with_cookie = register(MrOptions {
        cookie: true,
        ..open
    });
    let write = |sender: &Node, mr: &Mr| {
        let sges = [sender.mr.sge(0..10)];
        let operation = write_record(mr.rkey(), mr.addr());
        sender
            .post(1, operation, &sender.to(&target.qp), &sges)
            .unwrap();
        success(sender);
    };
    write(&friend, &of_friend);
    assert_eq!(success(&target).byte_len, 10);
    write(&stranger, &of_friend);
    write(&friend, &with_cookie);
    nothing_came(&target);
    let counters = target.qp.counters();
    assert_eq!(counters.dropped(DropReason::WrongPeer), 1);
    assert_eq!(counters.dropped(DropReason::BadCookie), 1);
    prove(&target, &friend, &stranger, &with_cookie);
    let chosen = register(MrOptions {
        well_known: Some(WELL_KNOWN),
        ..open
    });
    assert_eq!(chosen.rkey(), WELL_KNOWN);
    let again = target.pd.register_with(
        target.memory.region(),
        MrOptions {
            well_known: Some(WELL_KNOWN),
            ..open
        },
    );
    assert!(matches!(again, Err(Error::StagTaken { stag: WELL_KNOWN })));
}

/// A Write-Record with its sender's cookie is taken, and no other queue pair can use the cookie.
fn prove(target: &Node, friend: &Node, stranger: &Node, mr: &Mr) {
    let proven = friend
        .qp
        .prove_address(&friend.to(&target.qp), SOON)
        .unwrap();
    let write = |sender: &Node, length: usize| {
        sender.memory.write(0, &vec![0x77; length]);
        let operation = write_record(mr.rkey(), mr.addr());
        let sges = [sender.mr.sge(0..length)];
        sender.post(1, operation, &proven, &sges).unwrap();
        success(sender);
    };
    // Staged, and gathered in several segments.
    for length in [0, 1, 5000, 60_000] {
        target.memory.write(0, &[0; 60_000]);
        write(friend, length);
        let wc = success(target);
        assert_eq!(wc.byte_len as usize, length);
        assert_eq!(target.memory.to_vec(0, length), vec![0x77; length]);
        target.qp.release_record(wc.record());
    }
    let dropped = || target.qp.counters().dropped(DropReason::BadCookie);
    let before = dropped();
    write(stranger, 10);
    nothing_came(target);
    assert_eq!(dropped(), before + 1);
    // A Send, which needs no cookie, may have one.
    target.post_recv(1, 0..100);
    friend.send(2, &proven, 0..10);
    success(friend);
    assert_eq!(success(target).byte_len, 10);
    // Nobody is there, and a group proves nothing to anybody.
    let nobody = friend.to_port(LOOPBACK, 9);
    for to in [nobody, to_group(friend, multicast(12))] {
        let refused = friend.qp.prove_address(&to, Duration::from_millis(100));
        assert!(matches!(refused, Err(Error::NoCookie { .. })));
    }
}

#[test]
fn misuse_is_refused() {
    let node = node(8);
    for host in ["127.0.0.1", "::1", "10.1.2.3"] {
        let refused = node.qp.attach_group(host.parse().unwrap(), None);
        assert!(matches!(refused, Err(Error::NotAGroup { .. })), "{host}");
    }
    let group = multicast(9);
    node.qp.attach_group(group, ON_LOOPBACK).unwrap();
    let twice = node.qp.attach_group(group, ON_LOOPBACK);
    assert!(matches!(twice, Err(Error::Attached { .. })));
    let other = node.qp.detach_group(multicast(10), ON_LOOPBACK);
    assert!(matches!(other, Err(Error::NotAttached { .. })));
    for last in 100..163 {
        node.qp.attach_group(multicast(last), ON_LOOPBACK).unwrap();
    }
    let too_many = node.qp.attach_group(multicast(163), ON_LOOPBACK);
    assert!(matches!(too_many, Err(Error::Limit { max: 64, .. })));
    // A place that became free is used, and what came before it is not mixed up with what comes now.
    node.qp.detach_group(multicast(100), ON_LOOPBACK).unwrap();
    node.qp.attach_group(multicast(163), ON_LOOPBACK).unwrap();
    node.post_recv(1, 0..100);
    node.send(2, &to_group(&node, multicast(163)), 0..5);
    let wcs = [success(&node), success(&node)];
    let received = wcs.iter().find(|wc| wc.opcode == WcOpcode::Recv).unwrap();
    assert_eq!(received.destination, Some(multicast(163)));
}
