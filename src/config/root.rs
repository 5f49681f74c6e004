//! The configuration: the list of its sections.

use super::backends::{client_tls, discovery, section as backends, usage};
use super::sections::clients::{access, identities, limits, listeners, routes, tiers, tls};
use super::sections::process::{drain, reload};
use super::sections::responses::{refusal_detection, slow, stalls, streams};
use super::sections::telemetry::{log, metrics, slos, timeline, tracing};
use super::sections::upstream::{
    admission, circuit_breaker, models, retry, routing, scrape, timeouts,
};
use crate::options::with_options;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokenweir_settings::{
    CheckResult, ConfigSection, ListedSecret, OutputFile, ReloadClass, Secret, SecretList,
    distinct_files,
};

/// Defines [`Config`] from its sections. Each line has a key and its [`ConfigSection`].
macro_rules! define_config {
    (
        { $($(#[$attribute:meta])+ $key:ident: $section:ty,)+ }
        $(
            $option_key:ident: $option:ty
            $(, $description:literal)?
            $(, reads $read:expr)?
            $(, facet $facet:expr)?
        ;)*
    ) => {
        define_config! {
            $($(#[$attribute])+ $key: $section,)+
            $($(#[doc = $description] $option_key: <$option as tokenweir_option::GatewayOption>::Settings,)?)*
        }
    };
    ($($(#[$attribute:meta])+ $key:ident: $section:ty,)+) => {
        /// The configuration. [`Config::load`] validates it.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct Config {
            $($(#[$attribute])+ pub $key: <$section as ConfigSection<Config>>::Values,)+
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($key: <$section as ConfigSection<Self>>::defaults(),)+ }
            }
        }

        impl Config {
            /// Returns the first violation of a rule.
            pub(super) fn check(&self) -> CheckResult {
                $(<$section as ConfigSection<Self>>::check(&self.$key, self)?;)+
                distinct_files(&self.output_files())
            }

            /// The configuration to use after a reload that has read the configuration `new`.
            pub(super) fn reloaded(&self, new: &Self) -> Self {
                Self {
                    $($key: <$section as ConfigSection<Self>>::reloaded(&self.$key, &new.$key),)+
                }
            }

            /// The key of each section with its reload class.
            pub fn reload_classes() -> Vec<(&'static str, ReloadClass)> {
                vec![$((stringify!($key), <$section as ConfigSection<Self>>::RELOAD),)+]
            }

            /// All secrets except the secrets of discovered backends.
            pub fn secrets(&self) -> Vec<ListedSecret<'_>> {
                let mut list = SecretList::default();
                $(<$section as ConfigSection<Self>>::list_secrets(&self.$key, &mut list);)+
                list.0
            }

            /// The files that the gateway writes.
            pub fn output_files(&self) -> Vec<OutputFile<'_>> {
                let mut found = Vec::new();
                $(found.extend(<$section as ConfigSection<Self>>::output_file(&self.$key));)+
                found
            }
        }
    };
}

with_options! { define_config {
    /// Address of the client listener: an IP address and a port, or `localhost:8080`. `:8080`
    /// accepts clients from other machines, on all interfaces.
    listen: listeners::Listen,
    /// Whether other processes of the same user may listen on the same address.
    listen_reuse_port: listeners::ListenReusePort,
    /// Address of the admin listener, in the format of `listen`. Clients must not be able to reach
    /// it.
    admin: listeners::Admin,
    /// The backends. Names and addresses must be unique.
    backends: backends::Section,
    /// Sources that discover further backends while the gateway runs.
    discovery: discovery::Section,
    /// Model names and aliases for clients, in addition to the models that the backends list.
    models: models::Section,
    /// Further paths of the backends that clients may use, up to 100.
    routes: routes::Section,
    /// Selection of a backend for each request.
    routing: routing::Section,
    /// The admission queue, in which requests wait while every backend of a model is full.
    admission: admission::Section,
    /// Authentication and permissions of clients and operators.
    access: access::Section,
    /// TLS of the client listener and the admin listener.
    tls: tls::Section,
    /// TLS of the connections to backends.
    backend_tls: client_tls::Section,
    /// Limits on clients: sizes, timeouts, connections and requests.
    limits: limits::Section,
    /// Timeouts of requests to backends.
    timeouts: timeouts::Section,
    /// Retries of failed requests on other backends.
    retry: retry::Section,
    /// Circuit breakers, which eject and re-admit backends.
    circuit_breaker: circuit_breaker::Section,
    /// Scrapes and health checks of backends.
    scrape: scrape::Section,
    /// Whether the gateway requests token counts (`usage`) that clients did not request.
    usage: usage::Usage,
    /// Share of streams, 0 to 1, for which the gateway requests usage in every event from vLLM.
    /// Needs `usage: inject`. 0: off.
    continuous_usage: usage::ContinuousUsage,
    /// Handling of streams.
    streams: streams::Section,
    /// Detection of stalled streams.
    stalls: stalls::Section,
    /// Thresholds of slow requests.
    slow: slow::Section,
    /// Detection of model refusals.
    refusal_detection: refusal_detection::Section,
    /// Assignment of a tier to each request.
    tiers: tiers::Section,
    /// Service level objectives. Each request counts as good or bad when it ends. Up to 20.
    slos: slos::Section,
    /// Metrics and their export.
    metrics: metrics::Section,
    /// The drain at shutdown.
    drain: drain::Section,
    /// Reloads of the configuration without SIGHUP.
    reload: reload::Section,
    /// Logs.
    log: log::Section,
    /// Verdicts, drains, reloads and deploys of the last days.
    timeline: timeline::Section,
    /// User, session and conversation of a request on spans and access log lines.
    identities: identities::Section,
    /// Export of traces.
    tracing: tracing::Section,
} }

impl Config {
    /// The secrets that a reload reads again, except the secrets of discovered backends.
    pub fn reloaded_secrets(&self) -> impl Iterator<Item = &Secret> {
        let listed = self
            .secrets()
            .into_iter()
            .filter(|listed| listed.is_reloaded);
        listed.map(|listed| listed.secret.location())
    }
}
