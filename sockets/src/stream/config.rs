//! Parameters of an end.

use crate::wire::ByteOrder;

/// Sizes of an end. Out of range, they are taken as the nearest in range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Octets of the send buffer that a program is told, 2,048 to 2^30.
    pub send_octets: u32,
    /// Octets of the send buffer, of which those at its end are used when many are under way.
    pub most_send_octets: u32,
    /// Octets of the receive buffer at first, 2 to 2^30, even. Half of it is advertised at a time.
    pub receive_octets: u32,
    /// Octets that the receive buffer grows to by doubling, as a peer uses up all that is advertised.
    pub most_receive_octets: u32,
    /// Entries of the send queue, 16 to 65,534; messages of data take two.
    pub send_entries: u16,
    /// Messages of data that the peer may send before they are taken, 16 to 65,534.
    pub receive_entries: u16,
    /// I/O maps of the peer's that there is room for. The private data have 0 to 128 exactly, multiples of 256 above.
    pub io_maps: u16,
    /// Octets up to which data need no send buffer.
    pub inline: u32,
    /// Byte order of the host.
    pub order: ByteOrder,
}

impl Config {
    /// Fewest entries of a queue.
    const MIN_ENTRIES: u16 = 16;
    /// Most entries of a queue.
    const MAX_ENTRIES: u16 = 0xfffe;
    /// Longest buffer.
    const MAX_OCTETS: u32 = 1 << 30;
    /// Free octets of the send buffer below which nothing is sent, as `SO_SNDLOWAT`.
    pub const LOW_WATER: u32 = 2048;
    /// Targets in a list.
    pub const TARGETS: u32 = 2;

    /// The nearest sizes in range.
    #[must_use]
    pub fn in_range(self) -> Self {
        let entries = |n: u16| n.clamp(Self::MIN_ENTRIES, Self::MAX_ENTRIES);
        let receive_octets = self.receive_octets.clamp(2, Self::MAX_OCTETS) & !1;
        let send_octets = self.send_octets.clamp(Self::LOW_WATER, Self::MAX_OCTETS);
        Self {
            send_octets,
            most_send_octets: self.most_send_octets.clamp(send_octets, Self::MAX_OCTETS),
            receive_octets,
            most_receive_octets: self
                .most_receive_octets
                .clamp(receive_octets, Self::MAX_OCTETS),
            send_entries: entries(self.send_entries),
            receive_entries: entries(self.receive_entries),
            io_maps: crate::wire::slots_of(crate::wire::scale_of(self.io_maps)),
            ..self
        }
    }
}

impl Default for Config {
    /// rdma-core's defaults.
    fn default() -> Self {
        Self {
            send_octets: 1 << 17,
            most_send_octets: 1 << 17,
            receive_octets: 1 << 17,
            most_receive_octets: 1 << 17,
            send_entries: 384,
            receive_entries: 384,
            io_maps: 0,
            inline: 64,
            order: ByteOrder::NATIVE,
        }
    }
}

/// Addresses and keys of an end's memory, as its peer uses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// Address of the list of targets, behind which the I/O maps are.
    pub targets: u64,
    /// Its remote key.
    pub targets_key: u32,
    /// Address of the receive buffer.
    pub buffer: u64,
    /// Its remote key.
    pub buffer_key: u32,
}
