//! The identity of a backend: its name, its address, and the settings of requests to it.

use super::kv_events::{BackendCache, KvEventSource};
use http::HeaderValue;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use tokenweir_engine::address::BackendId;
use tokenweir_engine::address::{BackendAddress, MetricsUrl};
use tokenweir_engine::prefill_leg::Role;
use tokenweir_protocol::clock;
use tokenweir_protocol::limits::rate_limiter::GcraLimiter;
use tokenweir_routing::mix;

/// The identity and the settings of a backend. A reload can change the settings.
#[derive(Debug)]
#[repr(C)] // routing reads the last fields, which are next to the first fields of the health
pub struct BackendIdentity {
    /// The name of the backend.
    pub id: BackendId,
    /// Host, port and scheme.
    pub address: BackendAddress,
    /// The `Authorization` header that the gateway sends to the backend instead of the client's.
    /// `None`: the gateway forwards the client's header.
    pub authorization: Option<HeaderValue>,
    /// The URL of the metrics page, if it is not at a known path of `address`.
    pub metrics_url: Option<MetricsUrl>,
    /// The publishers of KV events. `None`: the gateway does not subscribe to them.
    pub kv_events: Option<KvEventSource>,
    /// The name of its Kubernetes pod. `None`: not known. A pod can get the address of an earlier
    /// pod.
    pod: Mutex<Option<Arc<str>>>,
    /// Share of streams, from 0 to 1, for which the gateway requests usage in every event, as bits
    /// of an `f64`.
    continuous_usage_share: AtomicU64,
    /// Streams whose usage is requested in every event although they are not in that share, so that
    /// a backend with few streams has the inter-token latency of nearly all.
    counted_streams: GcraLimiter,
    /// Number of GPUs and price of all of them for one hour, as bits of `f64`. NaN: not configured.
    gpu_cost: [AtomicU64; 2],
    /// Whether the gateway may request usage that the client did not request.
    may_inject_usage: AtomicBool,
    /// Whether the data-parallel ranks of the backend are targets of routing.
    routes_to_ranks: AtomicBool,
    /// Whether the configuration drains the backend. An operator can end this drain.
    has_configured_drain: AtomicBool,
    /// The index in [`Role::ALL`]. Another number: the backend has no role.
    role: AtomicU8,
    /// The configured weight. 0: the backend gets no new requests.
    weight: AtomicU32,
    /// The prefix cache of the backend, once its KV events are received.
    kv_cache: OnceLock<Arc<BackendCache>>,
    /// Hash of the backend's name.
    pub(crate) id_hash: u64,
}

/// Streams per second and backend whose usage is requested in every event beyond the configured share.
/// At this rate the cost of the longer events cannot be measured.
const COUNTED_STREAMS_PER_SECOND: u32 = 2;

impl BackendIdentity {
    /// An identity with default settings.
    pub(super) fn new(
        id: BackendId,
        address: BackendAddress,
        authorization: Option<HeaderValue>,
    ) -> Self {
        let id_hash = id.as_str().bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
        Self {
            id,
            address,
            authorization,
            metrics_url: None,
            kv_events: None,
            pod: Mutex::default(),
            continuous_usage_share: AtomicU64::new(0.0_f64.to_bits()),
            counted_streams: GcraLimiter::new(COUNTED_STREAMS_PER_SECOND, clock::now()),
            gpu_cost: [const { AtomicU64::new(f64::NAN.to_bits()) }; 2],
            may_inject_usage: AtomicBool::new(true),
            routes_to_ranks: AtomicBool::new(false),
            has_configured_drain: AtomicBool::new(false),
            role: AtomicU8::new(u8::MAX),
            weight: AtomicU32::new(1),
            kv_cache: OnceLock::new(),
            id_hash,
        }
    }

    /// Whether both identities have the same name, addresses, publishers of KV events and
    /// `Authorization` header. The settings
    /// may differ.
    pub(super) fn is_same_endpoint(&self, other: &Self) -> bool {
        self.id == other.id
            && self.address == other.address
            && self.metrics_url == other.metrics_url
            && self.kv_events == other.kv_events
            && self.authorization == other.authorization
    }

    /// Copies the settings of `other`, such as the weight.
    pub(super) fn adopt_settings(&self, other: &Self) {
        self.set_weight(other.weight());
        self.set_usage_injection(other.may_inject_usage());
        self.set_data_parallel_ranks(other.routes_to_ranks());
        self.set_role(other.role());
        self.set_continuous_usage_share(other.continuous_usage_share());
        self.set_gpu_cost(other.gpu_cost());
        self.set_pod(other.pod());
    }

    /// The prefix cache of the backend. `None`: its KV events are not received.
    pub fn kv_cache(&self) -> Option<&Arc<BackendCache>> {
        self.kv_cache.get().filter(|cache| !cache.is_withdrawn())
    }

    /// The prefix cache of the backend, made by `create` if there is none yet.
    pub(super) fn kv_cache_or(
        &self,
        create: impl FnOnce() -> Arc<BackendCache>,
    ) -> &Arc<BackendCache> {
        self.kv_cache.get_or_init(create)
    }

    /// The number of GPUs of the backend, and the price of all of them for one hour. `None`: not
    /// configured.
    pub fn gpu_cost(&self) -> [Option<f64>; 2] {
        let read = |bits: &AtomicU64| f64::from_bits(bits.load(Ordering::Relaxed));
        self.gpu_cost.each_ref().map(|bits| Some(read(bits)).filter(|value| !value.is_nan()))
    }

    pub(super) fn set_gpu_cost(&self, cost: [Option<f64>; 2]) {
        for (bits, value) in self.gpu_cost.iter().zip(cost) {
            bits.store(value.unwrap_or(f64::NAN).to_bits(), Ordering::Relaxed);
        }
    }

    /// The name of the Kubernetes pod of the backend. `None`: not known.
    pub fn pod(&self) -> Option<Arc<str>> {
        self.pod.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_pod(&self, pod: Option<Arc<str>>) {
        *self.pod.lock().unwrap_or_else(PoisonError::into_inner) = pod;
    }

    /// The configured weight: the share of the requests relative to other backends.
    pub(super) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    pub(super) fn set_weight(&self, weight: u32) {
        self.weight.store(weight, Ordering::Relaxed);
    }

    /// Whether the gateway may request usage that the client did not request.
    pub(super) fn may_inject_usage(&self) -> bool {
        self.may_inject_usage.load(Ordering::Relaxed)
    }

    pub(super) fn set_usage_injection(&self, may_inject_usage: bool) {
        self.may_inject_usage.store(may_inject_usage, Ordering::Relaxed);
    }

    /// Whether the data-parallel ranks of the backend are targets of routing.
    pub(super) fn routes_to_ranks(&self) -> bool {
        self.routes_to_ranks.load(Ordering::Relaxed)
    }

    pub(super) fn set_data_parallel_ranks(&self, are_targets: bool) {
        self.routes_to_ranks.store(are_targets, Ordering::Relaxed);
    }

    /// The legs of requests that the backend serves. `None`: whole requests only.
    pub fn role(&self) -> Option<Role> {
        Role::ALL.get(usize::from(self.role.load(Ordering::Relaxed))).copied()
    }

    pub(super) fn set_role(&self, role: Option<Role>) {
        self.role.store(role.map_or(u8::MAX, |role| role as u8), Ordering::Relaxed);
    }

    /// Whether the configuration drains the backend.
    pub(super) fn has_configured_drain(&self) -> bool {
        self.has_configured_drain.load(Ordering::Relaxed)
    }

    /// Sets whether the configuration drains the backend. Returns the previous value.
    pub(super) fn replace_configured_drain(&self, is_drained: bool) -> bool {
        self.has_configured_drain.swap(is_drained, Ordering::Relaxed)
    }

    /// The configured share of streams, from 0 to 1, for which the gateway requests usage in every
    /// event.
    pub(super) fn continuous_usage_share(&self) -> f64 {
        f64::from_bits(self.continuous_usage_share.load(Ordering::Relaxed))
    }

    /// Takes one of the streams whose usage may be requested in every event beyond the share.
    pub(super) fn take_counted_stream(&self, now: Instant) -> bool {
        self.counted_streams.try_acquire(now)
    }

    pub(super) fn set_continuous_usage_share(&self, share: f64) {
        self.continuous_usage_share.store(share.to_bits(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(name: &str, url: &str, key: Option<&'static str>) -> BackendIdentity {
        let address = BackendAddress::parse(url).unwrap();
        BackendIdentity::new(BackendId::new(name), address, key.map(HeaderValue::from_static))
    }

    #[test]
    fn name_address_and_credentials_identify_a_backend_and_settings_do_not() {
        let backend = identity("a", "http://a:1", None);
        let same = identity("a", "http://a:1", None);
        same.set_weight(7);
        assert!(backend.is_same_endpoint(&same));
        for other in [
            identity("b", "http://a:1", None),
            identity("a", "http://a:2", None),
            identity("a", "http://a:1", Some("Bearer x")),
            BackendIdentity {
                metrics_url: MetricsUrl::parse("http://a:9").ok(),
                ..identity("a", "http://a:1", None)
            },
        ] {
            assert!(!backend.is_same_endpoint(&other));
        }
    }

    #[test]
    fn all_settings_are_adopted() {
        let (backend, other) =
            (identity("a", "http://a:1", None), identity("a", "http://a:1", None));
        other.set_weight(7);
        other.set_usage_injection(false);
        other.set_data_parallel_ranks(true);
        other.set_role(Some(Role::Both));
        other.set_continuous_usage_share(0.5);
        other.set_gpu_cost([Some(8.0), None]);
        other.set_pod(Some("vllm-7c9-x".into()));
        backend.adopt_settings(&other);
        assert_eq!((backend.weight(), backend.may_inject_usage()), (7, false));
        assert!(backend.routes_to_ranks());
        assert_eq!(backend.role(), Some(Role::Both));
        assert_eq!(backend.continuous_usage_share().to_bits(), 0.5_f64.to_bits());
        assert_eq!(backend.gpu_cost(), [Some(8.0), None]);
        assert_eq!(backend.pod().as_deref(), Some("vllm-7c9-x"));
    }
}
