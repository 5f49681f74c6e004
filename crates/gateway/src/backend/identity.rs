//! The identity of a backend: its name, its address, and the settings of requests to it.

use arc_swap::{ArcSwap, Guard};
use http::HeaderValue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::address::{BackendAddress, MetricsUrl};
use tokenweir_protocol::limits::rate_limiter::GcraLimiter;
use tokenweir_routing::mix;

/// The identity and the settings of a backend. A reload can change the settings.
#[derive(Debug)]
#[repr(C)] // routing reads the last fields, which are next to the first fields of the health
pub struct BackendIdentity {
    /// The configured name, or host and port of the URL.
    pub id: BackendId,
    /// Host, port and scheme.
    pub address: BackendAddress,
    /// The `Authorization` header that the gateway sends to the backend in place of the client's header.
    /// `None`: the gateway forwards the client's header.
    pub authorization: Option<HeaderValue>,
    /// The URL of the metrics page, if it is not at a known path of `address`.
    pub metrics_url: Option<MetricsUrl>,
    settings: ArcSwap<BackendSettings>,
    /// Rate limit for streams with usage in every event beyond the configured share. With these streams, the
    /// gateway measures the inter-token latency of nearly all streams of a backend that has few.
    pub(super) counted_streams: GcraLimiter,
    /// A copy of the weight in `settings`, which routing reads for each candidate.
    weight: AtomicU32,
    /// Hash of the name, equal at all gateways.
    pub id_hash: u64,
}

/// The settings of a backend that a reload can change.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendSettings {
    /// The configured weight. 0: the backend gets no new requests.
    pub weight: u32,
    /// Whether the gateway may request usage that the client did not request.
    pub may_inject_usage: bool,
    /// Share of streams, from 0 to 1, for which the gateway requests usage in every event.
    pub continuous_usage_share: f64,
    /// Whether the configuration drains the backend. An operator can end this drain.
    pub is_drained: bool,
    /// The name of the Kubernetes pod of the backend, because a new pod can get the address of an earlier one.
    /// `None`: not known.
    pub pod: Option<Arc<str>>,
}

/// Maximum number of streams per second and backend, in addition to the configured share, for which the gateway
/// requests usage in every event. At this rate, the cost of the longer events is not measurable.
const COUNTED_STREAMS_PER_SECOND: u32 = 2;

impl BackendIdentity {
    /// An identity with default settings.
    pub(super) fn new(
        id: BackendId,
        address: BackendAddress,
        authorization: Option<HeaderValue>,
    ) -> Self {
        let id_hash = id
            .as_str()
            .bytes()
            .fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
        Self {
            id,
            address,
            authorization,
            metrics_url: None,
            settings: ArcSwap::default(),
            counted_streams: GcraLimiter::new(COUNTED_STREAMS_PER_SECOND),
            weight: AtomicU32::new(1),
            id_hash,
        }
    }

    /// Whether both identities have the same name, addresses and `Authorization` header. The other settings may differ.
    pub(super) fn is_same_endpoint(&self, other: &Self) -> bool {
        self.id == other.id
            && self.address == other.address
            && self.metrics_url == other.metrics_url
            && self.authorization == other.authorization
    }

    /// The current settings, which a reload can replace.
    pub fn settings(&self) -> Guard<Arc<BackendSettings>> {
        self.settings.load()
    }

    /// Replaces the settings. Returns the previous ones.
    pub(super) fn replace_settings(&self, settings: Arc<BackendSettings>) -> Arc<BackendSettings> {
        self.weight.store(settings.weight, Ordering::Relaxed);
        self.settings.swap(settings)
    }

    /// The configured weight: the share of the requests relative to other backends.
    pub(super) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }
}

impl Default for BackendSettings {
    fn default() -> Self {
        Self {
            weight: 1,
            may_inject_usage: true,
            continuous_usage_share: 0.0,
            is_drained: false,
            pod: None,
        }
    }
}
