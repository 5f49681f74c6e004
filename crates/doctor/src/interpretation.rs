//! Interprets the gathered responses of a backend as the gateway interprets them.

use super::facts::{BackendFacts, GatherResult, GatheredResponse, StreamProbe};
use http::header::{CONTENT_TYPE, HeaderName, SERVER, VIA};
use http::{HeaderMap, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_engine::dialect::{EngineKind, EngineLoad};
use tokenweir_engine::model::{ModelList, ServedModel};

/// The header that a tokenweir gateway sets on its own error responses.
const GATEWAY_ERROR_HEADER: HeaderName = HeaderName::from_static("x-gateway-error");

/// Two events count as bunched if they arrive within less than this time. No engine generates the tokens of one
/// stream so fast, so a buffer on the path must have delayed the earlier event.
const MAX_BUNCHED_GAP: Duration = Duration::from_micros(200);
/// A finding about bunched events needs a stream with at least this number of events with output.
const MIN_BUNCHED_EVENTS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GatewayListener {
    /// The client listener of a gateway. `has_metrics`: whether the facts also contain the metrics page of
    /// this gateway.
    Clients {
        has_metrics: bool,
    },
    Admin,
}

/// Major and minor version of vLLM, which determine its features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VllmVersion(pub(super) u32, pub(super) u32);

impl GatheredResponse {
    pub(super) fn is_ok(&self) -> bool {
        self.status == StatusCode::OK
    }

    /// Whether the response is the metrics page of a tokenweir gateway, which the admin listener
    /// serves.
    pub fn is_gateway_metrics(&self) -> bool {
        let mut lines = self.body.split(|byte| *byte == b'\n');
        self.is_ok() && lines.any(|line| line.starts_with(b"tokenweir_"))
    }

    /// The load, if the response is a metrics page. `None`: the response is not a metrics page, or the gateway
    /// knows none of its metrics.
    pub fn load(&self) -> Option<EngineLoad> {
        let load = self.is_ok().then(|| EngineLoad::read(&self.body));
        load.filter(EngineLoad::is_understood)
    }

    /// The value of a header as text. `None`: the header is missing, or its value is not text.
    pub(super) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl BackendFacts {
    /// The addresses at which the engine says that it publishes KV events. Empty: the engine states none, or
    /// its statement is unknown.
    pub(super) fn event_endpoints(&self) -> Vec<String> {
        let answer = ok_response(&self.event_sources);
        let ranks = answer.and_then(|answer| serde_json::from_slice(&answer.body).ok());
        let ranks: serde_json::Map<String, serde_json::Value> = ranks.unwrap_or_default();
        let publishing = ranks
            .values()
            .filter(|rank| rank["enable_kv_cache_events"] != false);
        publishing
            .filter_map(|rank| Some(rank["endpoint"].as_str()?.to_owned()))
            .collect()
    }

    /// Whether the server responded to the health check, with any status.
    pub fn is_reached(&self) -> bool {
        self.health.is_ok()
    }

    /// The version text that the server reports. `None`: the server reports no readable version.
    pub fn version_text(&self) -> Option<String> {
        let answer = ok_response(&self.version)?;
        let version: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
        Some(version.get("version")?.as_str()?.to_owned())
    }

    /// The parsed version of a vLLM server. `None`: another server, or an unusual version text.
    pub(super) fn version_number(&self) -> Option<VllmVersion> {
        if self.is_vllm() {
            VllmVersion::parse(&self.version_text()?)
        } else {
            None
        }
    }

    /// The models that the server lists. `None`: the model list cannot be read.
    pub fn served(&self) -> Option<Arc<[ServedModel]>> {
        ModelList::read(&ok_response(&self.models)?.body).map(|list| list.models)
    }

    /// The load from the metrics page. `None`: there is no page, or the gateway knows none of its metrics.
    pub fn load(&self) -> Option<EngineLoad> {
        self.metrics.as_ref().ok()?.load()
    }

    /// The text of the metrics page. `None`: the status of the response was not 200.
    pub(super) fn page(&self) -> Option<&[u8]> {
        ok_response(&self.metrics).map(|answer| &*answer.body)
    }

    /// The kind of inference server. Its model list determines the kind, or else its metrics. `None`: the kind
    /// is unknown.
    pub fn server(&self) -> Option<EngineKind> {
        let models = self.served();
        let first = models.as_ref().and_then(|models| models.first());
        let by_metrics = || EngineLoad::read(self.page()?).server;
        first.and_then(|model| model.server).or_else(by_metrics)
    }

    pub(super) fn is_vllm(&self) -> bool {
        self.server() == Some(EngineKind::Vllm)
    }

    /// Whether the server is vLLM with its Rust front end, the only one that always sends metrics in the format
    /// `OpenMetrics`.
    pub fn is_rust_front_end(&self) -> bool {
        let media_type = ok_response(&self.metrics).and_then(|answer| answer.header(CONTENT_TYPE));
        let is_openmetrics =
            media_type.is_some_and(|value| value.starts_with("application/openmetrics"));
        self.is_vllm() && is_openmetrics
    }

    /// The listener of a tokenweir gateway that responded instead of a backend. `None`: the server is not a
    /// gateway.
    pub(super) fn gateway_listener(&self) -> Option<GatewayListener> {
        let has_metrics = self
            .metrics
            .as_ref()
            .is_ok_and(GatheredResponse::is_gateway_metrics);
        if has_metrics {
            let lists_models = self.models.as_ref().is_ok_and(GatheredResponse::is_ok);
            let listener = GatewayListener::Clients { has_metrics };
            return Some(if lists_models {
                listener
            } else {
                GatewayListener::Admin
            });
        }
        let mut pages = [&self.health, &self.models, &self.metrics]
            .into_iter()
            .flatten();
        let is_gateway = pages.any(|answer| answer.headers.contains_key(GATEWAY_ERROR_HEADER));
        is_gateway.then_some(GatewayListener::Clients { has_metrics })
    }

    /// Whether the server responded and is not a gateway, so that the checks of backends apply to it.
    pub(super) fn is_backend(&self) -> bool {
        self.is_reached() && self.gateway_listener().is_none()
    }

    /// Whether the server rejects requests without an API key.
    pub(super) fn is_key_required(&self) -> bool {
        let without_key = self.models_without_key.as_ref().unwrap_or(&self.models);
        without_key
            .as_ref()
            .is_ok_and(|answer| is_refusal(answer.status))
    }

    /// The response header that shows a proxy in front of the backend, as `name: value`. `None`: there is no
    /// such header. vLLM itself sends `server: uvicorn` or no `server` header.
    pub(super) fn intermediary_header(&self) -> Option<String> {
        let probe = self.probe.as_ref().and_then(|probe| probe.as_ref().ok());
        let pages = [&self.version, &self.models, &self.metrics];
        let headers = pages.into_iter().flatten().map(|answer| &answer.headers);
        let mut headers = headers.chain(probe.map(|probe| &probe.headers));
        headers.find_map(proxy_header)
    }

    /// Whether a path exists, judged by the status of an `OPTIONS` request: 405 means that it exists. `None`:
    /// unknown, because no response arrived, or the server does not answer unknown paths with 404.
    pub(super) fn has_path(&self, path: &str) -> Option<bool> {
        let status = |wanted: &str| self.options.iter().find(|(path, _)| *path == wanted)?.1;
        // Statuses show which paths exist only if the server answers an unknown path with 404.
        if status(super::gather::UNKNOWN_PATH) != Some(StatusCode::NOT_FOUND) {
            return None;
        }
        Some(status(path)? == StatusCode::METHOD_NOT_ALLOWED)
    }
}

impl StreamProbe {
    /// The number of events with output that arrived within [`MAX_BUNCHED_GAP`] of the previous event. `None`:
    /// fewer than three quarters of the gaps are so short, or there are too few events.
    pub(super) fn bunched_events(&self) -> Option<usize> {
        let events = self.arrivals.len();
        let gaps = self
            .arrivals
            .windows(2)
            .map(|pair| pair[1].saturating_duration_since(pair[0]));
        let bunched = gaps.filter(|gap| *gap < MAX_BUNCHED_GAP).count();
        (events >= MIN_BUNCHED_EVENTS && bunched * 4 >= (events - 1) * 3).then_some(bunched)
    }
}

impl VllmVersion {
    /// Parses a version text such as `0.32.0`, `0.33.0rc1` or `0.11.1.dev5+g1234`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.trim_start_matches('v').split('.');
        let mut number = || {
            let part = numbers.next()?;
            let digits = part
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(part.len());
            part[..digits].parse().ok()
        };
        Some(Self(number()?, number()?))
    }
}

/// Whether the status of a response means that the API key is missing or wrong.
pub(super) fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

fn ok_response(result: &GatherResult) -> Option<&GatheredResponse> {
    result.as_ref().ok().filter(|answer| answer.is_ok())
}

fn proxy_header(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(via) = text(VIA) {
        return Some(format!("via: {via}"));
    }
    let server = text(SERVER).filter(|server| !server.eq_ignore_ascii_case("uvicorn"));
    server.map(|server| format!("server: {server}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_parses_all_forms_of_vllm_version_strings() {
        for (text, version) in [
            ("0.32.0", Some(VllmVersion(0, 32))),
            ("0.33.0rc1", Some(VllmVersion(0, 33))),
            ("0.11.1.dev5+g1a2b3c", Some(VllmVersion(0, 11))),
            ("0.32.0+cpu", Some(VllmVersion(0, 32))),
            ("v1.0", Some(VllmVersion(1, 0))),
            ("dev", None),
            ("", None),
        ] {
            assert_eq!(VllmVersion::parse(text), version, "{text}");
        }
        assert!(VllmVersion(0, 9) < VllmVersion(0, 10) && VllmVersion(0, 33) < VllmVersion(1, 0));
    }
}
