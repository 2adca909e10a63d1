//! One colour for each line of a picture, distinct for readers without red or green cones too.

use crate::catalog::{Op, Subject, Transport};

/// A colour on light pages and on dark ones, and dashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Colour {
    light: String,
    dark: String,
    dash: Option<&'static str>,
}

/// After Okabe and Ito, for operations of queue pairs.
const OPERATIONS: [(&str, &str); 6] = [
    ("#0072b2", "#4ba3e3"),
    ("#d55e00", "#f0803c"),
    ("#009e73", "#2fc596"),
    ("#7788ff", "#cc2255"),
    ("#4411ff", "#8833dd"),
    ("#223399", "#bbee00"),
];

/// Greys, for what operations are compared with.
const BASELINES: [(&str, &str, Option<&str>); 3] = [
    ("#1c2126", "#dadfe4", None),
    ("#565b60", "#868b90", Some("6 3")),
    ("#979da3", "#666b70", Some("2 3")),
];

/// Ends of a ramp: the least and the greatest of several shares.
const RAMP: [([u8; 3], [u8; 3]); 2] = [
    ([0x7d, 0xb3, 0xe0], [0x0b, 0x2f, 0x5c]),
    ([0x2f, 0x6f, 0xb5], [0xd6, 0xe8, 0xfa]),
];

impl Colour {
    /// The colour of an operation, one in all pictures.
    pub(crate) fn of(subject: Subject) -> Self {
        match subject.transport {
            Transport::Udp | Transport::Tcp | Transport::Shm => {
                let (light, dark, dash) = BASELINES[match (subject.transport, subject.op) {
                    (_, Op::RawTrain | Op::Broadcast) | (Transport::Shm, _) => 1,
                    (_, Op::RawSingle) => 2,
                    _ => 0,
                }];
                Self::new(light, dark, dash)
            }
            Transport::Ud
            | Transport::UdRing
            | Transport::Rd
            | Transport::RdRing
            | Transport::Rc
            | Transport::RcRing
            | Transport::RcDirect => {
                let (light, dark) = OPERATIONS[match subject.op {
                    Op::Send | Op::Multicast => 0,
                    Op::Write | Op::WriteRecord | Op::Broadcast => 1,
                    Op::Read | Op::Connect => 2,
                    Op::WriteImm => 3,
                    Op::FetchAdd => 4,
                    Op::CompareSwap | Op::Raw | Op::RawTrain | Op::RawSingle => 5,
                }];
                // The operation has one colour, whichever way it takes.
                let dash = match subject.transport {
                    Transport::RcRing | Transport::UdRing | Transport::RdRing => Some("6 3"),
                    Transport::Rd | Transport::RcDirect => Some("2 3"),
                    _ => None,
                };
                Self::new(light, dark, dash)
            }
        }
    }

    /// The colour of a step in an order of so many.
    pub(crate) fn step(index: usize, of: usize) -> Self {
        let steps = u32::try_from(of.saturating_sub(1))
            .unwrap_or(u32::MAX)
            .max(1);
        let index = u32::try_from(index).unwrap_or(u32::MAX).min(steps);
        let [light, dark] = RAMP.map(|(from, to)| {
            let mix = |(from, to): (u8, u8)| {
                let (from, to) = (u64::from(from), u64::from(to));
                let (index, steps) = (u64::from(index), u64::from(steps));
                format!("{:02x}", (from * (steps - index) + to * index) / steps)
            };
            let mixed: String = from.into_iter().zip(to).map(mix).collect();
            format!("#{mixed}")
        });
        Self::new(&light, &dark, None)
    }

    fn new(light: &str, dark: &str, dash: Option<&'static str>) -> Self {
        Self {
            light: light.to_owned(),
            dark: dark.to_owned(),
            dash,
        }
    }

    /// The custom properties of an element that is drawn in this colour.
    pub(crate) fn style(&self) -> String {
        format!("--light:{};--dark:{}", self.light, self.dark)
    }

    /// The dashes of a line.
    pub(crate) const fn dash(&self) -> Option<&'static str> {
        self.dash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::subjects::{
        RC_COMPARE_SWAP, RC_FETCH_ADD, RC_READ, RC_SEND, RC_WRITE, RC_WRITE_IMM, TCP_RAW, UD_READ,
        UD_SEND, UD_WRITE_RECORD, UDP_RAW, UDP_SINGLE, UDP_TRAIN,
    };

    /// Linear light of people who see all colours, and of those without red or green cones (Machado, Oliveira and
    /// Fernandes 2009).
    const SIGHTS: [[[f64; 3]; 3]; 3] = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
        [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ],
    ];

    fn linear(colour: &str) -> [f64; 3] {
        [1, 3, 5].map(|at| {
            let level = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            match level <= 0.040_45 {
                true => level / 12.92,
                false => ((level + 0.055) / 1.055).powf(2.4),
            }
        })
    }

    fn dot(row: [f64; 3], of: [f64; 3]) -> f64 {
        row.iter().zip(of).map(|(one, other)| one * other).sum()
    }

    /// Oklab, in which distances are those that people see.
    fn oklab(light: [f64; 3]) -> [f64; 3] {
        let cones = [
            [0.412_221, 0.536_333, 0.051_446],
            [0.211_903, 0.680_700, 0.107_397],
            [0.088_302, 0.281_719, 0.629_979],
        ];
        let cones = cones.map(|row| dot(row, light).max(0.0).cbrt());
        let axes = [
            [0.210_454, 0.793_618, -0.004_072],
            [1.977_998, -2.428_592, 0.450_594],
            [0.025_904, 0.782_772, -0.808_676],
        ];
        axes.map(|row| dot(row, cones))
    }

    fn distance(one: &str, other: &str) -> f64 {
        let seen = |sight: [[f64; 3]; 3], colour| {
            let light = linear(colour);
            oklab(sight.map(|row| dot(row, light)))
        };
        let apart = SIGHTS.map(|sight| {
            let (one, other) = (seen(sight, one), seen(sight, other));
            let squares = one.iter().zip(other).map(|(a, b)| (a - b).powi(2));
            squares.sum::<f64>().sqrt()
        });
        apart.into_iter().fold(f64::INFINITY, f64::min)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let luminance = |colour| dot([0.2126, 0.7152, 0.0722], linear(colour)) + 0.05;
        let (one, other) = (luminance(one), luminance(other));
        (one / other).max(other / one)
    }

    fn assert_told_apart(colours: &[Colour]) {
        for (at, one) in colours.iter().enumerate() {
            assert!(contrast(&one.light, "#ffffff") >= 2.0, "{one:?}");
            assert!(contrast(&one.dark, "#16181b") >= 2.0, "{one:?}");
            for other in &colours[..at] {
                // Dashes help where greys are near.
                let least = if one.dash == other.dash { 0.10 } else { 0.05 };
                for (one, other) in [(&one.light, &other.light), (&one.dark, &other.dark)] {
                    let apart = distance(one, other);
                    assert!(apart >= least, "{one} and {other}: {apart}");
                }
            }
        }
    }

    #[test]
    fn colours_of_one_picture_are_told_apart_by_all_readers() {
        let udp = [
            UDP_RAW,
            UDP_TRAIN,
            UDP_SINGLE,
            UD_SEND,
            UD_WRITE_RECORD,
            UD_READ,
        ];
        assert_told_apart(&udp.map(Colour::of));
        let tcp = [
            TCP_RAW,
            RC_SEND,
            RC_WRITE,
            RC_READ,
            RC_WRITE_IMM,
            RC_FETCH_ADD,
            RC_COMPARE_SWAP,
        ];
        assert_told_apart(&tcp.map(Colour::of));
    }

    #[test]
    fn steps_of_a_ramp_go_one_way() {
        for of in 2..12 {
            let steps: Vec<Colour> = (0..of).map(|index| Colour::step(index, of)).collect();
            for pair in steps.windows(2) {
                let luminance = |colour: &str| contrast(colour, "#000000");
                assert!(luminance(&pair[0].light) > luminance(&pair[1].light));
                assert!(luminance(&pair[0].dark) < luminance(&pair[1].dark));
            }
        }
    }
}
