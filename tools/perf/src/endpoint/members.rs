//! How far each of several receivers has seen one stream. The slowest decides how much more may be sent, so that none is
//! overrun.

/// The receivers, named by the port that their credits come from.
#[derive(Debug, Default)]
pub(crate) struct Members {
    positions: Vec<(u16, u64)>,
    /// The position that all have reached.
    reached: u64,
}

impl Members {
    /// Adds a receiver.
    pub(crate) fn add(&mut self, port: u16) {
        self.positions.push((port, 0));
    }

    /// A stream begins.
    pub(crate) fn restart(&mut self) {
        for (_, position) in &mut self.positions {
            *position = 0;
        }
        self.reached = 0;
    }

    /// Takes note of a credit. Returns the position that all have reached, if it is a new one: that one receiver goes on is
    /// no progress while another is silent.
    pub(crate) fn credit(&mut self, port: u16, position: u64) -> Option<u64> {
        let member = self
            .positions
            .iter_mut()
            .find(|(known, _)| *known == port)?;
        member.1 = member.1.max(position);
        let all = self.positions.iter().map(|(_, position)| *position).min()?;
        let advanced = all > self.reached;
        self.reached = all;
        advanced.then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_decides() {
        let mut members = Members::default();
        members.add(7);
        members.add(8);
        assert_eq!(members.credit(7, 100), None);
        assert_eq!(members.credit(8, 40), Some(40));
        assert_eq!(members.credit(8, 30), None, "late");
        assert_eq!(members.credit(8, 1000), Some(100));
        assert_eq!(members.credit(9, 1000), None, "a stranger");
        members.restart();
        assert_eq!(members.credit(8, 50), None);
        assert_eq!(members.credit(7, 50), Some(50));
    }
}
