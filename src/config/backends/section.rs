//! The section `backends`.

use super::client_tls;
use super::usage::UsageMode;
use serde::{Deserialize, Deserializer, de::Error};
use tokenweir_engine::address::{BackendAddress, BackendId, MetricsUrl};
use tokenweir_engine::role::Role;
#[cfg(feature = "options")]
use tokenweir_gpu::check_price;
#[cfg(feature = "options")]
use tokenweir_kv_event_routing::KvEventSource;
use tokenweir_net::tls::TlsClientSettings;
use tokenweir_protocol::settings_entry;
use tokenweir_settings::{
    CheckResult, ConfigSection, ConfiguredSecret, Secret, SecretList, violation_at, violation_of,
};

settings_entry! {
    /// A backend.
    pub struct BackendConfig {
        /// URL of the backend: scheme, host and port, without `/v1`. A path goes before the paths of
        /// requests, such as `http://proxy/engine-1` of a proxy in front of several engines.
        pub url: BackendAddress,
        /// Name of the backend. `None`: host, port and path of the URL.
        #[serde(default, deserialize_with = "read_name")]
        pub name: Option<String>,
        /// URL of the metrics page, if another port or host serves it. `None`: `/metrics` or
        /// `/prometheus/metrics` of `url`.
        pub metrics_url: Option<MetricsUrl>,
        /// Token that the gateway sends to the backend. `None`: the client's token.
        pub api_key: Option<Secret>,
        /// Whether the gateway requests token counts that clients did not request. `None`: the global `usage`.
        pub usage: Option<UsageMode>,
        /// Number of GPUs of the backend. `None`: `cost.gpus`.
        #[cfg(feature = "options")]
        pub gpus: Option<u32>,
        /// Price of one GPU of the backend for one hour. `None`: `cost.gpu_hour_price`.
        #[cfg(feature = "options")]
        pub gpu_hour_price: Option<f64>,
        /// Publishers of the KV events of the backend. `None`: those of `kv_events`.
        #[cfg(feature = "options")]
        pub kv_events: Option<KvEventSource>,
        /// The name of the pod of the backend, from Kubernetes discovery. `None`: not known.
        #[serde(skip)]
        pub pod: Option<String>,
        /// TLS of the connections to the backend. `None`: `backend_tls`.
        pub tls: Option<TlsClientSettings>,
        /// Share of the requests relative to other backends, 0 to 1000000. 0: no new requests.
        #[serde(default = "default_weight")]
        pub weight: u32,
        /// The legs of requests that the backend serves, if prefill and decode are split: `prefill`, `decode` or
        /// `both`. `None`: whole requests only.
        pub role: Option<Role>,
        /// Whether the backend is drained at the start, and after a reload that changed this value.
        #[serde(default)]
        pub drained: bool,
    }
}

/// Maximum weight of a backend.
const MAX_WEIGHT: u32 = 1_000_000;

/// Maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 64;

impl BackendConfig {
    /// A backend with this URL and default settings.
    pub fn at(url: BackendAddress) -> Self {
        Self {
            url,
            name: None,
            metrics_url: None,
            api_key: None,
            usage: None,
            #[cfg(feature = "options")]
            gpus: None,
            #[cfg(feature = "options")]
            gpu_hour_price: None,
            #[cfg(feature = "options")]
            kv_events: None,
            pod: None,
            tls: None,
            weight: default_weight(),
            role: None,
            drained: false,
        }
    }

    /// The id of the backend: its configured name or, without one, the host, port and prefix of its URL.
    pub fn id(&self) -> BackendId {
        self.name
            .as_deref()
            .map_or_else(|| self.url.default_id(), BackendId::new)
    }

    pub(crate) fn secret(&self) -> Option<ConfiguredSecret<'_>> {
        let purpose = format!("the api_key of backend `{}`", self.id());
        ConfiguredSecret::new(purpose, self.api_key.as_ref())
    }
}

/// Values, rules and reload class of the section `backends`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = Vec<BackendConfig>;

    fn check(backends: &Vec<BackendConfig>, _: &C) -> CheckResult {
        check(backends)?;
        for (index, backend) in backends.iter().enumerate() {
            if let Some(tls) = &backend.tls {
                check_tls(&format!("backends.{index}.tls"), &backend.url, tls)?;
            }
        }
        Ok(())
    }

    fn list_secrets<'a>(backends: &'a Vec<BackendConfig>, list: &mut SecretList<'a>) {
        for (index, backend) in backends.iter().enumerate() {
            list.add_reloaded(format!("backends.{index}.api_key"), backend.secret());
        }
    }
}

/// Checks that names and addresses of backends are unique and that no weight is too large. Returns
/// the first violation.
pub(crate) fn check(backends: &[BackendConfig]) -> CheckResult {
    check_backends_distinct(backends)?;
    for (index, backend) in backends.iter().enumerate() {
        #[cfg(feature = "options")]
        check_options(&format!("backends.{index}"), backend)?;
        check_weight(&format!("backends.{index}.weight"), backend.weight)?;
    }
    Ok(())
}

/// Checks the keys that options have in the entry at `path`.
#[cfg(feature = "options")]
fn check_options(path: &str, backend: &BackendConfig) -> CheckResult {
    check_price(&format!("{path}.gpu_hour_price"), backend.gpu_hour_price)?;
    match backend.kv_events.as_ref().and_then(KvEventSource::problem) {
        Some((key, problem)) => Err(violation_at(&format!("{path}.kv_events.{key}"), problem)),
        None => Ok(()),
    }
}

/// Checks the TLS settings of a backend, which must have an address with `https://`.
fn check_tls(path: &str, address: &BackendAddress, tls: &TlsClientSettings) -> CheckResult {
    if !address.is_https() {
        return Err(violation_at(
            path,
            format!("{address} does not use TLS; write https://"),
        ));
    }
    client_tls::check(path, tls)
}

pub(crate) fn check_weight(path: &str, weight: u32) -> CheckResult {
    if weight > MAX_WEIGHT {
        return Err(violation_at(
            path,
            format!("a weight is at most {MAX_WEIGHT}"),
        ));
    }
    Ok(())
}

fn check_backends_distinct(backends: &[BackendConfig]) -> CheckResult {
    for (index, backend) in backends.iter().enumerate() {
        for (earlier_index, earlier) in backends.iter().take(index).enumerate() {
            let earlier_entry = format!("backends[{earlier_index}]");
            if earlier.url.is_same_endpoint(&backend.url) {
                let problem = format!("{} is already the url of {earlier_entry}", backend.url);
                return Err(violation_at(&format!("backends.{index}.url"), problem));
            }
            if earlier.id() == backend.id() {
                let problem = format!("`{}` is already the name of {earlier_entry}", backend.id());
                let path = format!("backends.{index}.name");
                let earlier_path = format!("backends.{earlier_index}.name");
                return Err(violation_of([&path, &earlier_path], problem));
            }
        }
    }
    Ok(())
}

fn default_weight() -> u32 {
    1
}

/// Reads the name of a backend. Names are values of metric labels, so they must be short and contain no
/// characters that need escapes.
fn read_name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let Some(name) = Option::<String>::deserialize(from)? else {
        return Ok(None);
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_plain) {
        let problem = "a name has 1 to 64 characters: letters, digits and `-_.:/`";
        return Err(D::Error::custom(problem));
    }
    Ok(Some(name))
}
