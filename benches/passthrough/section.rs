//! The sections of the passthrough bench, with their measured quantities and limits.

use super::subject::{Kind, Subject};
use super::{behavior, fleet, loads, memory};
use futures_util::FutureExt;
use futures_util::future::join_all;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tokenweir_protocol::named_enum;
use tokio::time::timeout;

/// Maximum time for measuring a subject in one section. A subject that takes longer counts as failed. Ten
/// million requests take less.
const TOO_LONG: Duration = Duration::from_mins(15);

named_enum! {
    /// A section of the bench: quantities that are measured together.
    pub(crate) enum Section {
        /// How a proxy changes unusual and broken streams.
        Behavior = "behavior",
        Chunks = "chunks",
        Requests = "requests",
        Latency = "latency",
        Memory = "memory",
        Prompts = "prompts",
        Idle = "idle",
        Fleet = "fleet",
        Cores = "cores",
        /// Memory over ten million requests, which takes minutes.
        Long = "long",
    }
}

/// A measured quantity of a section.
pub(crate) struct Figure {
    /// The name of the measured quantity, with its unit.
    pub(crate) name: &'static str,
    pub(crate) decimals: usize,
    /// The limits of this quantity for the gateway with all telemetry.
    pub(crate) bars: &'static [Bar],
}

/// A limit of a measured quantity for the gateway with all telemetry.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bar {
    AtMost(f64),
    AtLeast(f64),
    /// Maximum difference from the value of another measured proxy.
    Over(Kind, f64),
    /// Maximum ratio to the value of another measured proxy.
    TimesAtMost(Kind, f64),
    /// As `TimesAtMost`, but also meaningful if the value of the other proxy is near zero or negative.
    WithinTimes(Kind, f64),
}

const fn figure(name: &'static str, decimals: usize, bars: &'static [Bar]) -> Figure {
    Figure {
        name,
        decimals,
        bars,
    }
}

const BEHAVIOR: &[Figure] = &[
    figure("streams with changed bytes, of 6", 0, &[Bar::AtMost(0.0)]),
    figure(
        "broken streams that look complete, of 2",
        0,
        &[Bar::AtMost(0.0)],
    ),
    figure(
        "first event of an unknown channel after, ms",
        1,
        &[Bar::AtMost(50.0)],
    ),
    figure(
        "the backend sees that the client left after, ms",
        1,
        &[Bar::AtMost(50.0)],
    ),
];
// For these CPU times, `ratios.txt` also has limits, relative to those of the reference proxy.
const CHUNKS: &[Figure] = &[
    figure(
        "CPU a chunk, 200 streams at 20 ms, µs",
        2,
        &[Bar::TimesAtMost(Kind::Off, 1.15)],
    ),
    figure(
        "CPU a chunk, flat out, µs",
        2,
        &[Bar::TimesAtMost(Kind::Off, 1.15)],
    ),
    figure("CPU per chunk, full speed, backend ahead, µs", 2, &[]),
];
const REQUESTS: &[Figure] = &[
    figure(
        "CPU per small request, µs",
        1,
        &[Bar::TimesAtMost(Kind::Off, 1.15)],
    ),
    figure("small requests/s on one core", 0, &[]),
];
const LATENCY: &[Figure] = &[
    figure(
        "added TTFT p50 per second, µs",
        0,
        &[Bar::Over(Kind::Floor, 40.0)],
    ),
    figure(
        "added TTFT p99 per second, µs",
        0,
        &[Bar::WithinTimes(Kind::Floor, 1.2)],
    ),
    figure(
        "added chunk transit p50 per second, µs",
        0,
        &[Bar::Over(Kind::Floor, 40.0)],
    ),
    figure(
        "added chunk transit p99 per second, µs",
        0,
        &[Bar::WithinTimes(Kind::Floor, 1.2)],
    ),
    figure(
        "added time of a small request p50 per second, µs",
        0,
        &[Bar::Over(Kind::Floor, 40.0)],
    ),
    figure("added time of a small request p99 per second, µs", 0, &[]),
    figure(
        "added gap between chunks p99 per second, µs",
        0,
        &[Bar::WithinTimes(Kind::Floor, 1.2)],
    ),
];
const MEMORY: &[Figure] = &[
    figure("memory after the start, MiB", 1, &[Bar::AtMost(12.0)]),
    figure("memory per stream with 1,000 streams, KiB", 1, &[]),
    figure(
        "memory per stream with 5,000 streams, KiB",
        1,
        &[Bar::AtMost(12.0)],
    ),
    figure(
        "memory not freed after the streams, %",
        0,
        &[Bar::AtMost(20.0)],
    ),
];
const PROMPTS: &[Figure] = &[
    figure(
        "CPU per byte of a 220 KB prompt, ns",
        2,
        &[Bar::Over(Kind::Floor, 0.3)],
    ),
    figure(
        "CPU per byte of a 2 MB prompt, ns",
        2,
        &[Bar::Over(Kind::Floor, 0.3)],
    ),
    figure(
        "TTFT p50, 220 KB, 100 streams open, µs",
        0,
        &[Bar::Over(Kind::Floor, 1_000.0)],
    ),
    figure(
        "TTFT p50, 2 MB, 100 streams open, µs",
        0,
        &[Bar::Over(Kind::Floor, 1_000.0)],
    ),
];
const IDLE: &[Figure] = &[figure(
    "CPU of a core, idle with 16 backends, %",
    2,
    &[Bar::AtMost(0.5)],
)];
const FLEET: &[Figure] = &[
    figure("CPU per small request, 1 backend, µs", 1, &[]),
    figure("CPU per small request, 1,000 backends, µs", 1, &[]),
    figure("the second ÷ the first", 2, &[Bar::AtMost(1.1)]),
];
const CORES: &[Figure] = &[figure(
    "small requests per CPU time, two cores ÷ one core, × 2",
    2,
    &[Bar::AtLeast(1.8)],
)];
const LONG: &[Figure] = &[figure(
    "memory after 10 million requests ÷ after 1 million",
    2,
    &[Bar::AtMost(1.05)],
)];

impl Section {
    /// The subjects that the section measures: those that `only` names, separated by commas, or by default
    /// those of the section.
    pub(crate) fn subjects(self, only: Option<&str>) -> Vec<Kind> {
        let compared: &[Kind] = match self {
            Self::Idle | Self::Long => &[Kind::All],
            Self::Fleet | Self::Cores => &[Kind::Floor, Kind::All],
            Self::Behavior | Self::Chunks | Self::Requests | Self::Memory => &[
                Kind::Floor,
                Kind::Nginx,
                Kind::Haproxy,
                Kind::Off,
                Kind::Metrics,
                Kind::All,
            ],
            _ => &[Kind::Floor, Kind::Off, Kind::Metrics, Kind::All],
        };
        // The other proxies neither scrape nor select backends, so sections about that leave them out.
        let is_about_proxies = compared.contains(&Kind::Nginx) || self == Self::Latency;
        let suits = |kind: Kind| kind.is_gateway() || is_about_proxies || compared.contains(&kind);
        let is_asked = |kind: &Kind| match only {
            Some(list) => list.split(',').any(|name| name == kind.as_str()) && suits(*kind),
            None => compared.contains(kind),
        };
        Kind::ALL
            .into_iter()
            .filter(is_asked)
            .filter(|kind| kind.is_installed())
            .collect()
    }

    /// The quantities, in the order of the values that [`Section::round`] returns.
    pub(crate) const fn figures(self) -> &'static [Figure] {
        match self {
            Self::Behavior => BEHAVIOR,
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

    /// Runs one round: measures the subjects `kinds` in front of some or all of these backends. Returns the
    /// values of each subject. The subjects run one after the other; only for latency they all run at the
    /// same time. If a proxy other than the gateway fails under the load, its values are NaN.
    pub(crate) async fn round(self, kinds: &[Kind], backends: &[SocketAddr]) -> Vec<Vec<f64>> {
        if self == Self::Latency {
            let start = |kind| Subject::start(kind, &backends[..1]);
            let subjects = join_all(kinds.iter().copied().map(start)).await;
            let figures = loads::latency(&subjects, backends[0]).await;
            return figures.into_iter().map(Vec::from).collect();
        }
        let mut figures = Vec::new();
        for kind in kinds {
            let values = AssertUnwindSafe(self.measure(*kind, backends)).catch_unwind();
            let values = timeout(TOO_LONG, values).await.ok().and_then(Result::ok);
            assert!(
                values.is_some() || kind.is_other(),
                "{} failed",
                kind.as_str()
            );
            figures.push(values.unwrap_or_else(|| vec![f64::NAN; self.figures().len()]));
        }
        figures
    }

    /// Measures one subject, in any section but that of the latency.
    async fn measure(self, kind: Kind, backends: &[SocketAddr]) -> Vec<f64> {
        let one = &backends[..1];
        let start = Subject::start(kind, one);
        match self {
            Self::Behavior => behavior::of(&start.await).await.into(),
            Self::Chunks => loads::chunks(&start.await).await.into(),
            Self::Requests => loads::requests(&start.await).await.into(),
            Self::Latency => unreachable!("the subjects of this section run at the same time"),
            Self::Memory => memory::turn(&start.await).await.into(),
            Self::Prompts => loads::prompts(&start.await).await.into(),
            Self::Idle => vec![fleet::idle(kind, &backends[..16]).await],
            Self::Fleet => fleet::larger(kind, backends).await.into(),
            Self::Cores => vec![fleet::cores(kind, one).await],
            Self::Long => vec![memory::long(&start.await).await],
        }
    }
}
