//! What is measured, in sections, and what it must reach.

use super::subject::{Kind, Subject};
use super::{fleet, loads, memory};
use std::net::SocketAddr;

/// What is measured together, in one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Chunks,
    Requests,
    Latency,
    Memory,
    Prompts,
    Idle,
    Fleet,
    Cores,
    /// Ten million requests, which take minutes.
    Long,
}

/// A number that is measured.
pub(crate) struct Figure {
    /// What it is, with its unit.
    pub(crate) name: &'static str,
    pub(crate) decimals: usize,
    /// What it must reach with all telemetry.
    pub(crate) bars: &'static [Bar],
}

/// What a number must reach.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bar {
    AtMost(f64),
    AtLeast(f64),
    /// So much more than that of the other.
    Over(Kind, f64),
    /// So many times that of the other.
    TimesAtMost(Kind, f64),
    /// The same, where that of the other may be next to nothing, or less.
    WithinTimes(Kind, f64),
    TimesAtLeast(Kind, f64),
}

const fn figure(name: &'static str, decimals: usize, bars: &'static [Bar]) -> Figure {
    Figure { name, decimals, bars }
}

const CHUNKS: &[Figure] = &[
    figure(
        "CPU a chunk, 200 streams at 20 ms, µs",
        2,
        &[Bar::TimesAtMost(Kind::Floor, 1.1), Bar::TimesAtMost(Kind::Off, 1.15)],
    ),
    figure(
        "CPU a chunk, flat out, µs",
        2,
        &[Bar::TimesAtMost(Kind::Floor, 1.3), Bar::TimesAtMost(Kind::Off, 1.15)],
    ),
    figure(
        "CPU a chunk, flat out, the replica ahead, µs",
        2,
        &[Bar::TimesAtMost(Kind::Floor, 1.3)],
    ),
];
const REQUESTS: &[Figure] = &[
    figure(
        "CPU a small request, µs",
        1,
        &[Bar::TimesAtMost(Kind::Floor, 1.4), Bar::TimesAtMost(Kind::Off, 1.15)],
    ),
    figure("small requests/s on one core", 0, &[Bar::TimesAtLeast(Kind::Floor, 0.7)]),
];
const LATENCY: &[Figure] = &[
    figure("added TTFT p50 of a second, µs", 0, &[Bar::Over(Kind::Floor, 40.0)]),
    figure("added TTFT p99 of a second, µs", 0, &[Bar::WithinTimes(Kind::Floor, 1.2)]),
    figure("added transit of a chunk p50 of a second, µs", 0, &[Bar::Over(Kind::Floor, 40.0)]),
    figure(
        "added transit of a chunk p99 of a second, µs",
        0,
        &[Bar::WithinTimes(Kind::Floor, 1.2)],
    ),
];
const MEMORY: &[Figure] = &[
    figure("fresh, MiB", 1, &[Bar::AtMost(12.0)]),
    figure("an open stream of 1,000, KiB", 1, &[]),
    figure("an open stream of 5,000, KiB", 1, &[Bar::AtMost(12.0)]),
    figure("of that kept when they have ended, %", 0, &[Bar::AtMost(20.0)]),
];
const PROMPTS: &[Figure] = &[
    figure("CPU a byte of a prompt of 220 KB, ns", 2, &[Bar::Over(Kind::Floor, 0.3)]),
    figure("CPU a byte of a prompt of 2 MB, ns", 2, &[Bar::Over(Kind::Floor, 0.3)]),
    figure("TTFT p50, 220 KB, 100 streams open, µs", 0, &[Bar::Over(Kind::Floor, 1_000.0)]),
    figure("TTFT p50, 2 MB, 100 streams open, µs", 0, &[Bar::Over(Kind::Floor, 1_000.0)]),
];
const IDLE: &[Figure] =
    &[figure("CPU of a core, idle with 16 replicas, %", 2, &[Bar::AtMost(0.5)])];
const FLEET: &[Figure] = &[
    figure("CPU a small request, 1 replica, µs", 1, &[]),
    figure("CPU a small request, 1,000 replicas, µs", 1, &[]),
    figure("the second ÷ the first", 2, &[Bar::AtMost(1.1)]),
];
const CORES: &[Figure] =
    &[figure("small requests for CPU time, on two cores ÷ on one, × 2", 2, &[Bar::AtLeast(1.8)])];
const LONG: &[Figure] =
    &[figure("memory after 10 million requests ÷ after 1 million", 2, &[Bar::AtMost(1.05)])];

impl Section {
    /// Those that do not take long.
    pub(crate) const SHORT: [Self; 8] = [
        Self::Chunks,
        Self::Requests,
        Self::Latency,
        Self::Memory,
        Self::Prompts,
        Self::Idle,
        Self::Fleet,
        Self::Cores,
    ];

    /// The name in tables and variables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Chunks => "chunks",
            Self::Requests => "requests",
            Self::Latency => "latency",
            Self::Memory => "memory",
            Self::Prompts => "prompts",
            Self::Idle => "idle",
            Self::Fleet => "fleet",
            Self::Cores => "cores",
            Self::Long => "long",
        }
    }

    /// Who has turns: of those in a list of names, or of those that are worth their time.
    pub(crate) fn subjects(self, only: Option<&str>) -> Vec<Kind> {
        let compared: &[Kind] = match self {
            Self::Idle | Self::Long => &[Kind::All],
            Self::Fleet | Self::Cores => &[Kind::Floor, Kind::All],
            _ => &[Kind::Floor, Kind::Off, Kind::Metrics, Kind::All],
        };
        // The floor has no replicas to look at or to choose from.
        let suits = |kind: Kind| kind != Kind::Floor || compared.contains(&kind);
        let is_asked = |kind: &Kind| match only {
            Some(list) => list.split(',').any(|name| name == kind.name()) && suits(*kind),
            None => compared.contains(kind),
        };
        Kind::ALL.into_iter().filter(is_asked).collect()
    }

    /// The numbers, in the order in which a turn gives them.
    pub(crate) const fn figures(self) -> &'static [Figure] {
        match self {
            Self::Chunks => CHUNKS,
            Self::Requests => REQUESTS,
            Self::Latency => LATENCY,
            Self::Memory => MEMORY,
            Self::Prompts => PROMPTS,
            Self::Idle => IDLE,
            Self::Fleet => FLEET,
            Self::Cores => CORES,
            Self::Long => LONG,
        }
    }

    /// A round: the numbers of each of these subjects, in front of some of these replicas. They have
    /// their turns one after the other; only for latency they are all there at once.
    pub(crate) async fn round(self, kinds: &[Kind], replicas: &[SocketAddr]) -> Vec<Vec<f64>> {
        let one = &replicas[..1];
        let start = |kind| Subject::start(kind, one);
        let sixteen = |kind| Subject::start(kind, &replicas[..16]);
        match self {
            Self::Latency => {
                let subjects: Vec<Subject> = kinds.iter().copied().map(start).collect();
                let found = loads::latency(&subjects, replicas[0]).await;
                found.into_iter().map(Vec::from).collect()
            }
            Self::Chunks => in_turn(kinds, async |kind| loads::chunks(&start(kind)).await).await,
            Self::Requests => {
                in_turn(kinds, async |kind| loads::requests(&start(kind)).await).await
            }
            Self::Memory => in_turn(kinds, async |kind| memory::turn(&start(kind)).await).await,
            Self::Prompts => in_turn(kinds, async |kind| loads::prompts(&start(kind)).await).await,
            Self::Idle => in_turn(kinds, async |kind| [fleet::idle(&sixteen(kind)).await]).await,
            Self::Fleet => in_turn(kinds, async |kind| fleet::larger(kind, replicas).await).await,
            Self::Cores => in_turn(kinds, async |kind| [fleet::cores(kind, one).await]).await,
            Self::Long => in_turn(kinds, async |kind| [memory::long(&start(kind)).await]).await,
        }
    }
}

/// Measures one subject after the other.
async fn in_turn<const NUMBERS: usize>(
    kinds: &[Kind],
    measure: impl AsyncFn(Kind) -> [f64; NUMBERS],
) -> Vec<Vec<f64>> {
    let mut found = Vec::new();
    for kind in kinds {
        found.push(measure(*kind).await.into());
    }
    found
}
