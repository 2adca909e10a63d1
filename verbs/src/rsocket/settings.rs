//! Configuration files: `/etc/rdma/rsocket` (`rsocket(7)`), one number each.

use crate::ffi::fork::ProcessTable;
use dgiwarp_sockets::Config;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Folder of the files.
const FOLDER: &str = "/etc/rdma/rsocket";

/// Octets of a send buffer, and of a receive buffer that has grown.
const MOST: u32 = 1 << 20;

/// Defaults of new sockets, and times of waiting calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) sizes: Config,
    /// Time for which a call polls before it sleeps.
    pub(super) polling_time: Duration,
    /// Longest sleep before a call looks again.
    pub(super) wake_up_interval: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sizes: Config {
                // Rdma-core has 128 KiB for each: a stream then waits for each 64 KiB, which hardware takes in microseconds. Memory is used as it is needed.
                most_send_octets: MOST,
                most_receive_octets: MOST,
                ..Config::default()
            },
            // Rdma-core has 10, which hardware answers in. Here a message takes about as long, and one that comes later than that costs both ends a sleep.
            polling_time: Duration::from_micros(50),
            wake_up_interval: Duration::from_millis(500),
        }
    }
}

impl Settings {
    /// The settings, read with the first socket of the process.
    pub(super) fn get() -> Self {
        static SETTINGS: ProcessTable<Option<Settings>> = ProcessTable::inherited(None);
        *SETTINGS
            .lock()
            .get_or_insert_with(|| Self::read(Path::new(FOLDER)))
    }

    fn read(folder: &Path) -> Self {
        let number = |name: &str| {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            // As scanf(3) does: leading digits, and what follows is ignored.
            let text = text.trim_start();
            let end = text.find(|c: char| !c.is_ascii_digit());
            text[..end.unwrap_or(text.len())].parse::<u32>().ok()
        };
        let short = |name: &str, default: u16| {
            number(name).map_or(default, |n| u16::try_from(n).unwrap_or(u16::MAX))
        };
        let default = Self::default();
        let sizes = default.sizes;
        let send = number("wmem_default").map(send_octets);
        let receive = number("mem_default").map(|n| n.max(2));
        let millis = |n: u32| Duration::from_millis(n.max(1).into());
        Self {
            sizes: Config {
                receive_octets: receive.unwrap_or(sizes.receive_octets),
                most_receive_octets: receive.unwrap_or(sizes.most_receive_octets),
                send_octets: send.unwrap_or(sizes.send_octets),
                most_send_octets: send.unwrap_or(sizes.most_send_octets),
                send_entries: short("sqsize_default", sizes.send_entries),
                receive_entries: short("rqsize_default", sizes.receive_entries),
                io_maps: short("iomap_size", sizes.io_maps),
                inline: number("inline_default").unwrap_or(sizes.inline),
                order: sizes.order,
            },
            polling_time: number("polling_time").map_or(default.polling_time, |micros| {
                Duration::from_micros(micros.into())
            }),
            wake_up_interval: number("wake_up_interval").map_or(default.wake_up_interval, millis),
        }
    }
}

/// Octets of a send buffer that was asked for: below the low-water mark, twice that.
pub(super) fn send_octets(asked: u32) -> u32 {
    if asked < Config::LOW_WATER {
        2 * Config::LOW_WATER
    } else {
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_one_number_each_and_others_are_ignored() {
        let folder = std::env::temp_dir().join(format!("rsocket-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(Settings::read(&folder), Settings::default());
        for (name, text) in [
            ("mem_default", "1000000\n"),
            ("wmem_default", " 7\n"),
            ("sqsize_default", "many"),
            ("rqsize_default", "100000"),
            ("polling_time", "250 µs"),
            ("wake_up_interval", "0"),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
        let read = Settings::read(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(read.sizes.receive_octets, 1_000_000);
        assert_eq!(read.sizes.send_octets, 4096);
        assert_eq!(read.sizes.send_entries, 384);
        assert_eq!(read.sizes.receive_entries, u16::MAX);
        assert_eq!(read.polling_time, Duration::from_micros(250));
        assert_eq!(read.wake_up_interval, Duration::from_millis(1));
    }
}
