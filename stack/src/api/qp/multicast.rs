//! Broadcast and multicast groups: membership of queue pairs.
//!
//! Sending needs no membership: an [`AddressHandle`](crate::AddressHandle) of a group is enough. Sends leave from the queue
//! pair's own port, so that members can reply to it, and go to the group port that all members share.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use crate::driver::udp::multicast as groups;
use crate::driver::udp::multicast::{GroupError, MAX_GROUPS, Membership};
use crate::driver::udp::port::Port;
use crate::driver::udp::socket::UdpSocket;
use crate::{Error, UdQp};

/// The group of all hosts of an IPv6 network: IPv6's broadcast.
pub const IPV6_ALL_HOSTS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The interface that a group is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupInterface {
    /// The one with this index (`if_nametoindex(3)`).
    Index(u32),
    /// The one with this address.
    Address(IpAddr),
}

impl UdQp {
    /// Receives datagrams to a group (`ibv_attach_mcast(3)`): an IPv4 or IPv6 multicast address; 255.255.255.255, the broadcast
    /// address of a network of this host, or 127.255.255.255 on the loopback interface; for IPv6 broadcast
    /// [`IPV6_ALL_HOSTS`]. Every queue pair that attached gets each message, in whatever process, the sender's own too
    /// if it attached. A queue pair may belong to 64 groups; each takes a descriptor.
    ///
    /// Without an interface the kernel takes that of its route to the group. The loopback interface and IPv6 groups of link-local scope
    /// need one. IPv6 groups on the loopback interface need a route that only an administrator can add, `ip -6 route add
    /// local ff00::/8 dev lo`: without it sending fails with [`Error::Route`].
    ///
    /// ```
    /// use dgiwarp::{Access, Buffer, Config, Destination, GroupInterface, Operation, RecvWr, Rnic, SendWr, UdQpAttr};
    /// use std::net::{IpAddr, Ipv4Addr};
    ///
    /// let rnic = Rnic::open(Config::default())?;
    /// let pd = rnic.alloc_pd();
    /// let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    /// let group: IpAddr = "239.192.18.14".parse()?;
    ///
    /// let cq = rnic.create_cq(16)?;
    /// let member = pd.create_ud_qp(&UdQpAttr::new(&cq, &cq))?;
    /// member.attach_group(group, Some(GroupInterface::Address(loopback)))?;
    /// let memory = Buffer::zeroed(100)?;
    /// let mr = pd.register(memory.region(), Access::LOCAL_WRITE)?;
    /// member.post_recv(&[RecvWr { wr_id: 1, sges: &[mr.sge(..)] }])?;
    ///
    /// let sender = pd.create_ud_qp(&UdQpAttr::new(&cq, &cq))?;
    /// let ah = pd.create_ah_from(group, 0, Some(loopback))?;
    /// sender.post_send(&[SendWr {
    ///     wr_id: 2,
    ///     operation: Operation::Send { immediate: None },
    ///     destination: Destination { ah, qpn: 0, qkey: 0 },
    ///     sges: &[mr.sge(..10)],
    ///     signaled: false,
    ///     solicited: false,
    /// }])?;
    /// let wc = cq.wait(std::time::Duration::from_secs(5))?.expect("a message");
    /// assert_eq!((wc.byte_len, wc.destination), (10, Some(group)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotAGroup`], [`Error::Attached`], [`Error::Limit`] for more groups than 64, and [`Error::System`]: `ENODEV` where
    /// no route or interface leads there, `EINVAL` where an interface is needed.
    pub fn attach_group(
        &self,
        group: IpAddr,
        interface: Option<GroupInterface>,
    ) -> Result<(), Error> {
        let membership = membership(group, interface)?;
        let config = self.pd().rnic().config();
        let socket = UdpSocket::join(
            membership.group,
            config.group_port,
            membership.interface,
            config.receive_buffer,
        )
        .map_err(Error::system("cannot join a group"))?;
        let attached = self.shared.attach_group(membership, Port::Udp(socket));
        attached.map_err(|error| match error {
            GroupError::Attached => Error::Attached { group },
            GroupError::TooMany => Error::Limit {
                what: "groups of a queue pair",
                value: MAX_GROUPS + 1,
                min: 0,
                max: MAX_GROUPS,
            },
            GroupError::System(source) => Error::system("cannot watch a socket")(source),
        })
    }

    /// Sets whether members on this host get datagrams of this queue pair to multicast groups, as they do at first
    /// (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`). Broadcasts always reach
    /// them, and so do datagrams through the loopback interface.
    ///
    /// # Errors
    /// [`Error::System`] where the kernel refuses.
    pub fn set_multicast_loop(&self, on: bool) -> Result<(), Error> {
        let set = self.shared.set_multicast_loop(on);
        set.map_err(Error::system("cannot change a socket"))
    }

    /// Ends that (`ibv_detach_mcast(3)`), for the group and interface that were given: nothing sent to the group is received when it
    /// returns.
    ///
    /// # Errors
    /// [`Error::NotAGroup`], [`Error::NotAttached`], [`Error::System`] where no interface has the address.
    pub fn detach_group(
        &self,
        group: IpAddr,
        interface: Option<GroupInterface>,
    ) -> Result<(), Error> {
        if self.shared.detach_group(membership(group, interface)?) {
            Ok(())
        } else {
            Err(Error::NotAttached { group })
        }
    }
}

fn membership(group: IpAddr, interface: Option<GroupInterface>) -> Result<Membership, Error> {
    let group = group.to_canonical();
    let is_group = match group {
        IpAddr::V4(v4) => v4.is_multicast() || broadcasts(v4)?,
        IpAddr::V6(v6) => v6.is_multicast(),
    };
    if !is_group {
        return Err(Error::NotAGroup { address: group });
    }
    let interface = match interface {
        None => 0,
        Some(GroupInterface::Index(index)) => index,
        Some(GroupInterface::Address(address)) => groups::interface_of(address.to_canonical())
            .map_err(Error::system("no interface has the address"))?,
    };
    Ok(Membership { group, interface })
}

fn broadcasts(address: std::net::Ipv4Addr) -> Result<bool, Error> {
    let asked: io::Result<bool> = groups::is_broadcast(address);
    asked.map_err(Error::system("cannot make a socket"))
}
