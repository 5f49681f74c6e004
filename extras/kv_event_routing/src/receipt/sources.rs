//! The publishers of the KV events of one backend: configured, or listed by `GET /kv_event_sources`.

use crate::settings::{KvEventSource, MAX_RANKS};
use http::StatusCode;
use serde::Deserialize;
use std::collections::BTreeMap;
use tokenweir_kv_events::zmtp::ZmqEndpoint;
use tokenweir_net::page_fetcher::PageFetcher;

/// The publisher of the KV events of one data-parallel rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Publisher {
    pub(crate) endpoint: ZmqEndpoint,
    pub(crate) replay_endpoint: Option<ZmqEndpoint>,
    pub(crate) topic: String,
}

/// One entry of `/kv_event_sources`. Other fields are ignored.
#[derive(Debug, Deserialize)]
struct ListedSource {
    enable_kv_cache_events: Option<bool>,
    endpoint: String,
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
}

/// The configured publishers, by rank. `None`: the configuration names none, so the gateway must
/// ask the backend.
pub(crate) fn configured(source: &KvEventSource) -> Option<Vec<Publisher>> {
    let endpoint: ZmqEndpoint = source.endpoint.as_ref()?.parse().ok()?;
    let replay: Option<ZmqEndpoint> = source
        .replay_endpoint
        .as_ref()
        .and_then(|endpoint| endpoint.parse().ok());
    let shifted = |endpoint: &ZmqEndpoint, offset: u16| {
        let port = endpoint.port.checked_add(offset)?;
        Some(ZmqEndpoint {
            host: endpoint.host.clone(),
            port,
        })
    };
    let publisher = |offset| {
        Some(Publisher {
            endpoint: shifted(&endpoint, offset)?,
            replay_endpoint: replay.as_ref().and_then(|replay| shifted(replay, offset)),
            topic: String::new(),
        })
    };
    (0..source.ranks.unwrap_or(1)).map(publisher).collect()
}

/// Asks a backend for its publishers. Empty: the backend has none. `None`: the backend did not
/// answer, or its list cannot be used.
pub(crate) async fn discover(fetcher: &mut PageFetcher, host: &str) -> Option<Vec<Publisher>> {
    match fetcher.get("/kv_event_sources").await {
        Ok((StatusCode::OK, body)) => listed(body, host),
        Ok((StatusCode::NOT_FOUND, _)) => Some(Vec::new()),
        _ => None,
    }
}

/// Reads a response of `/kv_event_sources`, which lists publishers. The host of the backend replaces the host
/// of each publisher, so that a backend cannot make the gateway connect to another machine. `None`: the list
/// cannot be used.
fn listed(body: &[u8], host: &str) -> Option<Vec<Publisher>> {
    let listed: BTreeMap<u16, ListedSource> = serde_json::from_slice(body).ok()?;
    if listed.len() > usize::from(MAX_RANKS) {
        return None;
    }
    let is_disabled = |source: &ListedSource| source.enable_kv_cache_events == Some(false);
    if listed.values().all(is_disabled) {
        return Some(Vec::new());
    }
    let at_backend = |address: &str| {
        let port = address
            .strip_prefix("tcp://")?
            .rsplit_once(':')?
            .1
            .parse()
            .ok()?;
        (port > 0).then(|| ZmqEndpoint {
            host: host.to_owned(),
            port,
        })
    };
    let publisher = |source: ListedSource| {
        if is_disabled(&source) {
            return None;
        }
        Some(Publisher {
            endpoint: at_backend(&source.endpoint)?,
            replay_endpoint: source.replay_endpoint.as_deref().and_then(at_backend),
            topic: source.topic,
        })
    };
    listed.into_values().map(publisher).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = r#"{
        "1": {"endpoint": "tcp://*:5558", "replay_endpoint": "tcp://*:6558", "topic": "kv"},
        "0": {"endpoint": "tcp://10.9.9.9:5557", "replay_endpoint": null, "hwm": 1}
    }"#;

    #[test]
    fn listed_publishers_get_the_host_of_the_backend() {
        let publishers = listed(LISTED.as_bytes(), "vllm").unwrap();
        let endpoint = |port| ZmqEndpoint {
            host: "vllm".into(),
            port,
        };
        assert_eq!(publishers[0].endpoint, endpoint(5557));
        assert_eq!(publishers[0].replay_endpoint, None);
        let second = Publisher {
            endpoint: endpoint(5558),
            replay_endpoint: Some(endpoint(6558)),
            topic: "kv".into(),
        };
        assert_eq!(publishers[1], second);
    }

    #[test]
    fn an_unusable_list_is_none() {
        for body in [
            "[]",
            "",
            r#"{"0": {}}"#,
            r#"{"0": {"endpoint": "ipc://x"}}"#,
        ] {
            assert_eq!(listed(body.as_bytes(), "vllm"), None, "{body}");
        }
        let disabled = r#"{"0": {"enable_kv_cache_events": false, "endpoint": "tcp://*:5557"}}"#;
        for body in ["{}", disabled] {
            assert_eq!(listed(body.as_bytes(), "vllm"), Some(Vec::new()), "{body}");
        }
        let entry = |rank| format!(r#""{rank}": {{"endpoint": "tcp://*:5557"}}"#);
        let many: Vec<String> = (0..=MAX_RANKS).map(entry).collect();
        assert_eq!(
            listed(format!("{{{}}}", many.join(",")).as_bytes(), "vllm"),
            None
        );
    }

    #[test]
    fn configured_ranks_have_successive_ports() {
        let source = KvEventSource {
            endpoint: Some("tcp://a:5557".into()),
            replay_endpoint: Some("tcp://a:6557".into()),
            ranks: Some(2),
            ..KvEventSource::default()
        };
        let ports = configured(&source).unwrap().into_iter().map(|publisher| {
            (
                publisher.endpoint.port,
                publisher.replay_endpoint.map(|replay| replay.port),
            )
        });
        assert_eq!(
            ports.collect::<Vec<_>>(),
            [(5557, Some(6557)), (5558, Some(6558))]
        );
        assert_eq!(configured(&KvEventSource::default()), None);
    }
}
