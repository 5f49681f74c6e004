//! Settings of KV events.

use tokenweir_engine::address::BackendAddress;
use tokenweir_kv_events::zmtp::ZmqEndpoint;
use tokenweir_net::supervise::BackgroundTask;
use tokenweir_protocol::settings;
use tokenweir_settings::{ConfigSection, ReloadClass};

/// Receives the KV events of a backend, or learns from them which blocks contain which prompts.
pub const TASK: BackgroundTask = BackgroundTask::new("kv_events");

settings! {
    /// How the gateway uses the KV events of backends.
    #[derive(Copy, Eq)]
    pub struct KvEventsSettings {
        /// Whether the gateway subscribes to the KV events of backends. `None`: yes, if the metrics
        /// page shows a prefix cache, a publisher answers, and the URL is not `https`.
        pub enabled: Option<bool>,
        /// Port of the publisher of data-parallel rank 0, for engines without `/kv_event_sources`.
        /// Further ranks have the ports after it. `None`: the gateway asks the backend.
        pub port: Option<u16>,
        /// Port at which the publisher of rank 0 replays events. `None`: without `port`, the gateway
        /// asks the backend; with `port`, there are no replays.
        pub replay_port: Option<u16>,
        /// Maximum number of cached blocks that the gateway remembers of one data-parallel rank, in 32
        /// bytes each. If an engine announces more, the gateway forgets all blocks of the rank. Also
        /// the maximum number of blocks with known text.
        pub max_blocks: usize,
    }
}

impl<C> ConfigSection<C> for KvEventsSettings {
    type Values = Self;
    // The first backend fixes the sizes of the tables.
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;
}

settings! {
    /// Where one backend publishes its KV events.
    #[derive(Eq, Default)]
    pub struct KvEventSource {
        /// Whether the gateway subscribes to the KV events of the backend. `None`: `kv_events.enabled`
        /// decides.
        pub enabled: Option<bool>,
        /// Address of the publisher of data-parallel rank 0, such as `tcp://10.0.0.7:5557`. Further
        /// ranks have the ports after it. `None`: from `kv_events.port`, or from the backend.
        pub endpoint: Option<String>,
        /// Address at which the publisher of rank 0 replays events.
        pub replay_endpoint: Option<String>,
        /// Number of data-parallel ranks with publishers, 1 to 64. Only with `endpoint` or
        /// `kv_events.port`.
        pub ranks: Option<u16>,
    }
}

/// Maximum number of data-parallel ranks of a backend.
pub(crate) const MAX_RANKS: u16 = 64;

impl Default for KvEventsSettings {
    /// The default: the gateway uses the events of publishers that answer, and stores at most
    /// 1,000,000 blocks.
    fn default() -> Self {
        Self {
            enabled: None,
            port: None,
            replay_port: None,
            max_blocks: 1_000_000,
        }
    }
}

impl KvEventSource {
    /// The source of the KV events of a backend at `address`. Missing values come from `settings`.
    /// `None`: the gateway does not subscribe to the events of the backend.
    pub fn resolve(&self, settings: &KvEventsSettings, address: &BackendAddress) -> Option<Self> {
        let host = address.host_and_port().0;
        let at = |port: u16| format!("tcp://{host}:{port}");
        let enabled = self.enabled.or(settings.enabled);
        let endpoint = self.endpoint.clone().or_else(|| settings.port.map(at));
        if !enabled.unwrap_or(!address.is_https()) {
            return None;
        }
        let mut replay_endpoint = self.replay_endpoint.clone();
        if replay_endpoint.is_none() && self.endpoint.is_none() {
            replay_endpoint = settings.replay_port.map(at);
        }
        Some(Self {
            enabled,
            endpoint,
            replay_endpoint,
            ranks: self.ranks,
        })
    }

    /// The first invalid setting of the source: its key, and the problem. `None`: all settings are
    /// valid.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        for (key, endpoint) in [
            ("endpoint", &self.endpoint),
            ("replay_endpoint", &self.replay_endpoint),
        ] {
            if let Some(Err(error)) = endpoint
                .as_ref()
                .map(|endpoint| endpoint.parse::<ZmqEndpoint>())
            {
                return Some((key, error.to_string()));
            }
        }
        let ranks = self
            .ranks
            .filter(|ranks| !(1..=MAX_RANKS).contains(ranks))?;
        Some((
            "ranks",
            format!("{ranks} is no number of ranks: write 1 to {MAX_RANKS}"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> BackendAddress {
        BackendAddress::parse(url).unwrap()
    }

    #[test]
    fn missing_settings_ask_the_backend() {
        let settings = KvEventsSettings {
            enabled: Some(true),
            ..KvEventsSettings::default()
        };
        let asked = KvEventSource::default()
            .resolve(&settings, &address("http://a:8000"))
            .unwrap();
        assert_eq!((asked.endpoint, asked.replay_endpoint), (None, None));
        let settings = KvEventsSettings {
            port: Some(5),
            replay_port: Some(6),
            ..settings
        };
        let ipv6 = address("http://[::1]:8000");
        let ports = KvEventSource::default().resolve(&settings, &ipv6).unwrap();
        assert_eq!(ports.endpoint.as_deref(), Some("tcp://[::1]:5"));
        assert_eq!(ports.replay_endpoint.as_deref(), Some("tcp://[::1]:6"));
        let own = KvEventSource {
            endpoint: Some("tcp://b:9".into()),
            ..KvEventSource::default()
        };
        let own = own.resolve(&settings, &ipv6).unwrap();
        assert_eq!(
            (own.endpoint.as_deref(), own.replay_endpoint),
            (Some("tcp://b:9"), None)
        );
    }

    #[test]
    fn the_setting_of_a_backend_wins() {
        for (global, own, url, expected) in [
            (None, None, "http://a:1", Some(None)),
            (None, None, "https://a:1", None),
            (Some(true), None, "https://a:1", Some(Some(true))),
            (None, Some(true), "https://a:1", Some(Some(true))),
            (Some(false), None, "http://a:1", None),
            (Some(false), Some(true), "http://a:1", Some(Some(true))),
            (Some(true), Some(false), "http://a:1", None),
        ] {
            let settings = KvEventsSettings {
                enabled: global,
                ..KvEventsSettings::default()
            };
            let source = KvEventSource {
                enabled: own,
                ..KvEventSource::default()
            };
            let resolved = source
                .resolve(&settings, &address(url))
                .map(|source| source.enabled);
            assert_eq!(resolved, expected, "{global:?} {own:?} {url}");
        }
    }
}
