//! Reception of octets with few copies: those of an unfinished FPDU are read behind its first ones.

use super::RcEngine;

impl RcEngine {
    /// Memory for the next octets of the stream, possibly none, and the octets of up to `most` that should be read behind them.
    #[inline]
    pub fn input_room(&mut self, most: usize) -> (&mut [u8], usize) {
        self.llp.input_room(most)
    }

    /// The first `len` octets of that memory have arrived; `handle_input` comes next.
    #[inline]
    pub fn input_placed(&mut self, len: usize) {
        self.llp.input_placed(len);
    }

    /// Gives memory for an unfinished FPDU, of [`LONGEST_FPDU`](dgiwarp_llp_tcp_mpa::framing::LONGEST_FPDU) octets. Returns it if it is not
    /// needed.
    #[inline]
    pub fn lend_input(&mut self, memory: Vec<u8>) -> Vec<u8> {
        self.llp.lend_input(memory)
    }

    /// Gives the memory back, if no FPDU is unfinished.
    #[inline]
    pub fn reclaim_input(&mut self) -> Option<Vec<u8>> {
        self.llp.reclaim_input()
    }
}
