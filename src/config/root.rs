//! The configuration: all its sections.

use super::sections::access::AccessConfig;
use super::sections::backends::BackendConfig;
use super::sections::discovery::DiscoveryConfig;
use super::sections::identities::IdentitiesConfig;
use super::sections::limits::LimitsConfig;
use super::sections::peer_exchange::PeerExchangeConfig;
use super::sections::routes::RouteConfig;
use super::sections::settings::{
    AdmissionConfig, CostConfig, DEFAULT_CONTINUOUS_USAGE_RATIO, DrainConfig, LogConfig,
    MetricsConfig, RefusalDetectionConfig, ReloadConfig, RoutingConfig, StreamsConfig, TiersConfig,
    TraceCaptureConfig, UsageMode,
};
use super::sections::webhooks::WebhookConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use std::net::{Ipv4Addr, SocketAddr};
use tokenweir_engine::address::parse_listen_address;
use tokenweir_gateway::backend::SleepSettings;
use tokenweir_gateway::backend::health_checker;
use tokenweir_gateway::backend::kv_events::KvEventsSettings;
use tokenweir_gateway::backend::routes::ModelConfig;
use tokenweir_gateway::proxy::retry;
use tokenweir_gateway::telemetry::otel;
use tokenweir_gpu::GpuSettings;
use tokenweir_net::client;
use tokenweir_net::tls::{TlsClientSettings, TlsServerSettings};
use tokenweir_request::observe::StallLimits;
use tokenweir_request::record::SlowLimits;
use tokenweir_request::slo::Objective;
use tokenweir_routing::resilience;

/// The configuration. [`Config::load`] validates it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address of the client listener: an IP address and a port, or `localhost:8080`. `:8080`
    /// accepts clients from other machines, on all interfaces.
    #[serde(deserialize_with = "read_socket")]
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Whether other processes of the same user may listen on the same address.
    pub listen_reuse_port: bool,
    /// Address of the admin listener, in the format of `listen`. Clients must not be able to reach
    /// it.
    #[serde(deserialize_with = "read_socket")]
    #[schemars(with = "String")]
    pub admin: SocketAddr,
    /// The backends. Names and addresses must be unique.
    pub backends: Vec<BackendConfig>,
    /// Sources that discover further backends while the gateway runs.
    pub discovery: Vec<DiscoveryConfig>,
    /// Model names and aliases for clients, in addition to the models that the backends list.
    pub models: Vec<ModelConfig>,
    /// Further paths of the backends that clients may use, up to 100.
    pub routes: Vec<RouteConfig>,
    /// Selection of a backend for each request.
    pub routing: RoutingConfig,
    /// The admission queue, in which requests wait while every backend of a model is full.
    pub admission: AdmissionConfig,
    /// Authentication and permissions of clients and operators.
    pub access: AccessConfig,
    /// TLS of the client listener and the admin listener.
    pub tls: TlsServerSettings,
    /// TLS of the connections to backends.
    pub backend_tls: TlsClientSettings,
    /// Limits on clients: sizes, timeouts, connections and requests.
    pub limits: LimitsConfig,
    /// Timeouts of requests to backends.
    pub timeouts: client::HttpClientTimeouts,
    /// Retries of failed requests on other backends.
    pub retry: retry::RetrySettings,
    /// Circuit breakers, which eject and re-admit backends.
    pub circuit_breaker: resilience::CircuitBreakerSettings,
    /// Scrapes and health checks of backends.
    pub scrape: health_checker::ScrapeSettings,
    /// Sleep mode of vLLM: when engines are woken and put to sleep.
    pub sleep: SleepSettings,
    /// KV events of backends: the contents of their prefix caches, for routing.
    pub kv_events: KvEventsSettings,
    /// Exchange with other gateways before the same backends, for routing.
    pub peer_exchange: PeerExchangeConfig,
    /// Whether the gateway requests token counts (`usage`) that clients did not request.
    pub usage: UsageMode,
    /// Share of streams, 0 to 1, for which the gateway requests usage in every event from vLLM.
    /// Needs `usage: inject`. 0: off.
    pub continuous_usage: f64,
    /// Handling of streams.
    pub streams: StreamsConfig,
    /// Detection of stalled streams.
    pub stalls: StallLimits,
    /// Thresholds of slow requests.
    pub slow: SlowLimits,
    /// Detection of model refusals.
    pub refusal_detection: RefusalDetectionConfig,
    /// Assignment of a tier to each request.
    pub tiers: TiersConfig,
    /// Service level objectives. Each request counts as good or bad when it ends. Up to 20.
    pub slos: Vec<Objective>,
    /// Metrics and their export.
    pub metrics: MetricsConfig,
    /// Cost of the GPUs, for metrics.
    pub cost: CostConfig,
    /// GPUs of the backends, from DCGM exporters.
    pub gpu: GpuSettings,
    /// Webhooks that get a message when a verdict begins and when it ends, up to 10.
    pub webhooks: Vec<WebhookConfig>,
    /// The drain at shutdown.
    pub drain: DrainConfig,
    /// Reloads of the configuration without SIGHUP.
    pub reload: ReloadConfig,
    /// Logs.
    pub log: LogConfig,
    /// Monitoring of the quality of responses.
    pub quality: tokenweir_quality::QualitySettings,
    /// User, session and conversation of a request on spans and access log lines.
    pub identities: IdentitiesConfig,
    /// Export of traces.
    pub tracing: otel::TracingConfig,
    /// Capture of the traffic to a file, without texts of prompts and responses.
    pub trace_capture: TraceCaptureConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8080).into(),
            listen_reuse_port: false,
            admin: (Ipv4Addr::LOCALHOST, 9090).into(),
            backends: Vec::new(),
            discovery: Vec::new(),
            models: Vec::new(),
            routes: Vec::new(),
            routing: RoutingConfig::default(),
            admission: AdmissionConfig::default(),
            access: AccessConfig::default(),
            tls: TlsServerSettings::default(),
            backend_tls: TlsClientSettings::default(),
            limits: LimitsConfig::default(),
            timeouts: client::HttpClientTimeouts::default(),
            retry: retry::RetrySettings::default(),
            circuit_breaker: resilience::CircuitBreakerSettings::default(),
            scrape: health_checker::ScrapeSettings::default(),
            sleep: SleepSettings::default(),
            kv_events: KvEventsSettings::default(),
            peer_exchange: PeerExchangeConfig::default(),
            usage: UsageMode::default(),
            continuous_usage: DEFAULT_CONTINUOUS_USAGE_RATIO,
            streams: StreamsConfig::default(),
            stalls: StallLimits::default(),
            slow: SlowLimits::default(),
            refusal_detection: RefusalDetectionConfig::default(),
            tiers: TiersConfig::default(),
            slos: Vec::new(),
            metrics: MetricsConfig::default(),
            cost: CostConfig::default(),
            gpu: GpuSettings::default(),
            webhooks: Vec::new(),
            drain: DrainConfig::default(),
            reload: ReloadConfig::default(),
            log: LogConfig::default(),
            quality: tokenweir_quality::QualitySettings::default(),
            identities: IdentitiesConfig::default(),
            tracing: otel::TracingConfig::default(),
            trace_capture: TraceCaptureConfig::default(),
        }
    }
}

/// Reads the address of a listener.
fn read_socket<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    parse_listen_address(&String::deserialize(from)?).map_err(D::Error::custom)
}
