//! Groups in network namespaces of their own: nothing but a loopback interface, and two hosts on one cable.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::mpsc;

use dgiwarp::{Error, GroupInterface, IPV6_ALL_HOSTS, WcOpcode};

use super::{
    LOOPBACK, LOOPBACK_BROADCAST, LOOPBACK_PLACE, Place, config, multicast, node, nothing_came,
    reply, success,
};
use crate::common::cable::{ip, on_two_hosts};
use crate::common::inside;
use crate::common::node::{Node, SOON};
use crate::common::strangers::dropped;

const RUN: &str = "ip link set lo up; exec \"$PROGRAM\" \"$TEST\" --exact --nocapture";
/// Runs the test without rights over the namespace.
const RUN_ORDINARY: &str =
    "ip link set lo up; exec unshare --user \"$PROGRAM\" \"$TEST\" --exact --nocapture";
const RUN_ROUTED: &str = "ip link set lo up; ip -6 route add local ff00::/8 dev lo; \
    exec unshare --user \"$PROGRAM\" \"$TEST\" --exact --nocapture";

/// On the loopback interface of a namespace of its own.
const ON_INDEX_1: Place = Place {
    interface: Some(GroupInterface::Index(1)),
    scope_id: 1,
    source: None,
};

#[test]
fn an_ordinary_user_with_nothing_but_loopback() {
    if !inside(
        here!("an_ordinary_user_with_nothing_but_loopback"),
        RUN_ORDINARY,
    ) {
        return;
    }
    for group in [multicast(1), LOOPBACK_BROADCAST, IpAddr::from([255; 4])] {
        let source = LOOPBACK_PLACE.each_member_receives_and_replies(group, 2, 0);
        assert_eq!(source, LOOPBACK);
    }
    // An interface suffices, too: the source follows.
    let source = ON_INDEX_1.each_member_receives_and_replies(multicast(2), 1, 0);
    assert_eq!(source, LOOPBACK);
    // Without either there is no route, and none at all for IPv6.
    let node = node(0);
    for (group, source) in [
        (multicast(3), None),
        (
            "ff02::1234".parse().unwrap(),
            Some(Ipv6Addr::LOCALHOST.into()),
        ),
    ] {
        let refused = node.pd.create_ah_from(group, 0, source);
        assert!(matches!(refused, Err(Error::Route { .. })), "{refused:?}");
    }
    assert!(node.qp.attach_group(multicast(3), None).is_err());
}

#[test]
fn ipv6_groups_on_a_loopback_interface_that_has_a_route() {
    if !inside(
        here!("ipv6_groups_on_a_loopback_interface_that_has_a_route"),
        RUN_ROUTED,
    ) {
        return;
    }
    let place = Place {
        interface: Some(GroupInterface::Address(Ipv6Addr::LOCALHOST.into())),
        scope_id: 1,
        source: Some(Ipv6Addr::LOCALHOST.into()),
    };
    for group in [
        "ff01::1234",
        "ff02::1234",
        "ff05::1234",
        "ff15::1234",
        "ff02::1",
    ] {
        for count in 1..=3 {
            let group = group.parse().unwrap();
            let source = place.each_member_receives_and_replies(group, count, 0);
            assert_eq!(source, IpAddr::from(Ipv6Addr::LOCALHOST));
        }
    }
}

fn index_of(interface: &str) -> u32 {
    nix::net::if_::if_nametoindex(interface).unwrap()
}

/// Where a group is on the cable.
fn cable() -> Place {
    let index = index_of("cable");
    Place {
        interface: Some(GroupInterface::Index(index)),
        scope_id: index,
        source: None,
    }
}

fn groups() -> [IpAddr; 5] {
    let all = IPV6_ALL_HOSTS.into();
    let own = "ff15::7878".parse().unwrap();
    let of_network = [10, 78, 0, 255].into();
    [[239, 7, 8, 1].into(), [255; 4].into(), of_network, own, all]
}

/// The other host: for each group, two members that receive a message each and reply.
fn other_host(tell: &mpsc::Sender<()>, go_on: &mpsc::Receiver<()>) {
    for group in groups() {
        let members = cable().members(2, 0, group);
        for member in &members {
            member.post_recv(1, 0..60_000);
        }
        tell.send(()).unwrap();
        for member in &members {
            let wc = success(member);
            assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::Recv, 50_000));
            assert_eq!(wc.destination, Some(group));
            assert_eq!(member.memory.to_vec(0, 50_000), [0x5a; 50_000]);
            member.send(2, &reply(member, wc.source.unwrap()), 0..10);
            success(member);
        }
        go_on.recv_timeout(SOON).unwrap();
        assert_eq!(dropped(&members[0].qp.counters()), 0);
    }
}

#[test]
fn members_of_two_hosts() {
    if !inside(here!("members_of_two_hosts"), RUN) {
        return;
    }
    let (tell, told) = mpsc::channel();
    let (go_on, wait) = mpsc::channel();
    let other = move || {
        other_host(&tell, &wait);
        // The cable ends with this thread.
        wait.recv_timeout(SOON).unwrap();
    };
    on_two_hosts(other, || {
        messages_to_members(&told, &go_on);
        a_smaller_interface_is_followed();
        go_on.send(()).unwrap();
    });
}

fn messages_to_members(told: &mpsc::Receiver<()>, go_on: &mpsc::Sender<()>) {
    for group in groups() {
        let place = cable();
        told.recv_timeout(SOON).unwrap();
        let member = &place.members(1, 0, group)[0];
        // A group address on another interface is another group.
        let elsewhere = &ON_INDEX_1.members(1, 0, group)[0];
        elsewhere.post_recv(1, 0..60_000);
        let sender = node(0);
        let to = place.to(&sender, group);
        let headers = if group.is_ipv4() { 28 } else { 48 };
        assert_eq!(to.ah.datagram_limit(), 1500 - headers);
        member.post_recv(1, 0..60_000);
        for receive in 0..2 {
            sender.post_recv(receive, 60_000..60_100);
        }
        sender.memory.write(0, &[0x5a; 50_000]);
        sender.send(3, &to, 0..50_000);
        success(&sender);
        // One on this host, and two on the other.
        assert_eq!(success(member).byte_len, 50_000);
        for _ in 0..2 {
            assert_eq!(success(&sender).byte_len, 10);
        }
        go_on.send(()).unwrap();
        nothing_came(elsewhere);
    }
}

/// Datagrams to a group follow the MTU of its interface, also when that becomes smaller.
fn a_smaller_interface_is_followed() {
    for (group, mtu, headers) in [(groups()[0], 1300, 28), (groups()[3], 1280, 48)] {
        let member = &cable().members(1, 0, group)[0];
        let sender = node(0);
        let to = cable().to(&sender, group);
        ip(&format!("link set cable mtu {mtu}"));
        member.post_recv(1, 0..60_000);
        sender.memory.write(0, &[0x3c; 50_000]);
        sender.send(2, &to, 0..50_000);
        success(&sender);
        assert_eq!(success(member).byte_len, 50_000);
        assert_eq!(member.memory.to_vec(0, 50_000), [0x3c; 50_000]);
        assert_eq!(to.ah.datagram_limit(), mtu - headers);
        assert!(sender.qp.counters().resized > 0);
        ip("link set cable mtu 1500");
    }
}

/// A router passes on what may go further than to the next host, and the network of the sender alone is the default.
#[test]
fn the_hop_limit_is_one_unless_asked() {
    let group = multicast(12);
    let receiver = std::net::UdpSocket::bind((group, config(10).group_port)).unwrap();
    let (IpAddr::V4(group_v4), IpAddr::V4(loopback)) = (group, LOOPBACK) else {
        unreachable!("both are IPv4")
    };
    receiver.join_multicast_v4(&group_v4, &loopback).unwrap();
    receiver.set_read_timeout(Some(SOON)).unwrap();
    nix::sys::socket::setsockopt(&receiver, nix::sys::socket::sockopt::Ipv4RecvTtl, &true).unwrap();
    let sender = Node::with(1 << 16, config(10), |_| ());
    let to = LOOPBACK_PLACE.to(&sender, group);
    for limit in [None, Some(7), Some(1)] {
        let mut to = to.clone();
        if let Some(limit) = limit {
            to.ah = to.ah.with_hop_limit(limit);
        }
        sender.send(1, &to, 0..100);
        success(&sender);
        assert_eq!(hop_limit(&receiver), i32::from(limit.unwrap_or(1)));
    }
    nothing_came(&sender);
}

fn hop_limit(socket: &std::net::UdpSocket) -> i32 {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg};
    use std::os::fd::AsRawFd as _;
    let mut octets = [0; 2000];
    let mut vector = [std::io::IoSliceMut::new(&mut octets)];
    let mut control = nix::cmsg_space!(i32);
    let flags = MsgFlags::empty();
    let message =
        recvmsg::<SockaddrIn>(socket.as_raw_fd(), &mut vector, Some(&mut control), flags).unwrap();
    let found = message.cmsgs().unwrap().find_map(|it| match it {
        ControlMessageOwned::Ipv4Ttl(limit) => Some(limit),
        _ => None,
    });
    found.unwrap()
}
