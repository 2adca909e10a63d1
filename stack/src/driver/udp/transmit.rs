//! Transmission of a train: one system call, or several, repeated after ICMP errors about earlier trains.

use std::io;
use std::net::SocketAddr;

use dgiwarp_llp_udp::Train;
use dgiwarp_memory::Piece;

use crate::driver::udp::icmp_errors::IcmpErrors;
use crate::driver::udp::port::Port;
use crate::driver::udp::socket::Leave;

/// How often a send is repeated after an ICMP error about an earlier one.
const TRIES: usize = 4;

/// Port, destination and control data of one train.
pub(crate) struct Transmission<'a> {
    pub(crate) port: &'a Port,
    pub(crate) to: Option<SocketAddr>,
    pub(crate) leave: Leave,
    pub(crate) icmp_errors: &'a mut IcmpErrors,
}

impl Transmission<'_> {
    /// Sends a train, or its datagrams one by one.
    #[inline(always)]
    pub(crate) fn carry(
        mut self,
        pieces: &[Piece<'_>],
        train: &Train,
        singly: bool,
    ) -> io::Result<usize> {
        if singly {
            self.send_singly(pieces, train)
        } else {
            self.send(pieces, train.segment_size())
        }
    }

    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        pieces: &[Piece<'_>],
        segment_size: Option<u16>,
    ) -> io::Result<usize> {
        let result = self.port.send(self.to, self.leave, pieces, segment_size);
        match &result {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                self.send_again(pieces, segment_size, result)
            }
            Ok(_) | Err(_) => result,
        }
    }

    /// Repeats a send that returned an error. An ICMP error about an earlier datagram is returned once, by the next call
    /// on the socket, and is not about this train; any other error comes back.
    #[cold]
    fn send_again(
        &mut self,
        pieces: &[Piece<'_>],
        segment_size: Option<u16>,
        mut result: io::Result<usize>,
    ) -> io::Result<usize> {
        for tries in 0..TRIES {
            let read = self.icmp_errors.read(self.port);
            if tries > 0 && read == 0 {
                break;
            }
            result = self.port.send(self.to, self.leave, pieces, segment_size);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Sends the datagrams of a train one by one.
    pub(crate) fn send_singly(&mut self, pieces: &[Piece<'_>], train: &Train) -> io::Result<usize> {
        let size = train.datagram();
        let mut sent = 0;
        match pieces {
            [Piece::Bytes(octets)] => {
                for datagram in octets.chunks(size) {
                    sent += self.send(&[Piece::Bytes(datagram)], None)?;
                }
            }
            // Gathered datagrams are made of a header, parts and a CRC each: cut where their lengths end.
            pieces => {
                let mut rest = pieces;
                while !rest.is_empty() {
                    let mut octets = 0;
                    let count = rest
                        .iter()
                        .take_while(|piece| {
                            let before = octets;
                            octets += match piece {
                                Piece::Bytes(octets) => octets.len(),
                                Piece::Region(slice) => slice.len(),
                            };
                            before < size
                        })
                        .count();
                    let (datagram, later) = rest.split_at(count.max(1));
                    sent += self.send(datagram, None)?;
                    rest = later;
                }
            }
        }
        Ok(sent)
    }
}
