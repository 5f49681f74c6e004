//! What the answers of a replica say, read as the gateway reads them.

use super::facts::{Answer, Asked, Probe, Replica};
use http::header::{CONTENT_TYPE, HeaderName, SERVER, VIA};
use http::{HeaderMap, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::dialect::{Load, Server};
use tokenweir_core::model::Model;

/// What gateways of this kind put on the errors that are their own.
const GATEWAY_ERROR: HeaderName = HeaderName::from_static("x-gateway-error");

/// No engine makes one token so soon after another: two events so close came together.
const TOGETHER: Duration = Duration::from_micros(200);
/// Fewer events show no pattern.
const LEAST_EVENTS: usize = 4;

/// A port of such a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GatewayPort {
    /// Where clients send their requests.
    Clients,
    /// Where operators look.
    Admin,
}

/// A version of vLLM: its first two numbers tell what it can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u32, pub(super) u32);

impl Answer {
    /// Whether it is what was asked for.
    pub(super) fn is_ok(&self) -> bool {
        self.status == StatusCode::OK
    }

    /// Whether it is a page of metrics of such a gateway itself, which its admin port has.
    pub fn is_admin_page(&self) -> bool {
        let mut lines = self.body.split(|byte| *byte == b'\n');
        self.is_ok() && lines.any(|line| line.starts_with(b"tokenweir_"))
    }

    /// A header as text.
    pub(super) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Replica {
    /// Whether it answered anything at all.
    pub fn is_reached(&self) -> bool {
        self.health.is_ok()
    }

    /// The version that it tells.
    pub fn version_text(&self) -> Option<String> {
        let answer = ok(&self.version)?;
        let version: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
        Some(version.get("version")?.as_str()?.to_owned())
    }

    /// The version, if it is vLLM and the version is of the usual form.
    pub(super) fn version_number(&self) -> Option<Version> {
        Version::parse(&self.version_text()?).filter(|_| self.is_vllm())
    }

    /// The models that it tells. `None`: it does not.
    pub fn served(&self) -> Option<Arc<[Model]>> {
        Model::list(&ok(&self.models)?.body)
    }

    /// What its metrics say. `None`: there are none.
    pub fn load(&self) -> Option<Load> {
        Some(Load::read(&ok(&self.metrics)?.body)).filter(Load::is_understood)
    }

    /// Its page of metrics.
    pub(super) fn page(&self) -> Option<&[u8]> {
        ok(&self.metrics).map(|answer| &*answer.body)
    }

    /// What kind of server it is: its models tell, or its metrics.
    pub fn server(&self) -> Option<Server> {
        let models = self.served();
        let first = models.as_ref().and_then(|models| models.first());
        let by_metrics = || Load::read(self.page()?).server;
        first.and_then(|model| model.server).or_else(by_metrics)
    }

    /// Whether it is vLLM.
    pub(super) fn is_vllm(&self) -> bool {
        self.server() == Some(Server::Vllm)
    }

    /// Whether vLLM's Rust front end answers: its metrics are always `OpenMetrics`.
    pub fn is_rust_front_end(&self) -> bool {
        let media_type = ok(&self.metrics).and_then(|answer| answer.header(CONTENT_TYPE));
        self.is_vllm() && media_type.is_some_and(|it| it.starts_with("application/openmetrics"))
    }

    /// Whether this is such a gateway, and no replica: which of its ports.
    pub(super) fn gateway_port(&self) -> Option<GatewayPort> {
        let pages = [&self.health, &self.models, &self.metrics];
        let mut pages = pages.into_iter().flatten();
        if pages.any(|answer| answer.headers.contains_key(GATEWAY_ERROR)) {
            return Some(GatewayPort::Clients);
        }
        let is_admin = self.metrics.as_ref().is_ok_and(Answer::is_admin_page);
        is_admin.then_some(GatewayPort::Admin)
    }

    /// Whether it answers and may be judged as a replica.
    pub(super) fn is_replica(&self) -> bool {
        self.is_reached() && self.gateway_port().is_none()
    }

    /// Whether it refuses whoever has no key.
    pub(super) fn wants_key(&self) -> bool {
        let without = self.models_without_key.as_ref().unwrap_or(&self.models);
        without.as_ref().is_ok_and(|answer| is_refusal(answer.status))
    }

    /// What stands between, by the headers of answers: vLLM's own are `uvicorn` or none.
    pub(super) fn in_between(&self) -> Option<String> {
        let probe = self.probe.as_ref().and_then(|probe| probe.as_ref().ok());
        let pages = [&self.version, &self.models, &self.metrics];
        let headers = pages.into_iter().flatten().map(|answer| &answer.headers);
        let mut headers = headers.chain(probe.map(|probe| &probe.headers));
        headers.find_map(sign_of_proxy)
    }

    /// Whether a path leads somewhere, without following it. `None`: it cannot be told.
    pub(super) fn has_path(&self, path: &str) -> Option<bool> {
        let status = |wanted: &str| self.options.iter().find(|(path, _)| *path == wanted)?.1;
        // A server that answers so to any path tells nothing.
        if status(super::gather::NOWHERE) != Some(StatusCode::NOT_FOUND) {
            return None;
        }
        Some(status(path)? == StatusCode::METHOD_NOT_ALLOWED)
    }
}

impl Probe {
    /// How many events with tokens came together with the one before, if those are three of four.
    pub(super) fn together(&self) -> Option<usize> {
        let events = self.arrivals.len();
        let gaps = self.arrivals.windows(2).map(|two| two[1].saturating_duration_since(two[0]));
        let together = gaps.filter(|gap| *gap < TOGETHER).count();
        (events >= LEAST_EVENTS && together * 4 >= (events - 1) * 3).then_some(together)
    }
}

impl Version {
    /// Reads `0.32.0`, `0.33.0rc1` or `0.11.1.dev5+g1234`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.trim_start_matches('v').split('.');
        let mut number = || {
            let part = numbers.next()?;
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        };
        Some(Self(number()?, number()?))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Whether a status asks for another key.
pub(super) fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

fn ok(asked: &Asked) -> Option<&Answer> {
    asked.as_ref().ok().filter(|answer| answer.is_ok())
}

fn sign_of_proxy(headers: &HeaderMap) -> Option<String> {
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
    fn a_version_is_read_in_every_form_that_vllm_has_had() {
        for (text, version) in [
            ("0.32.0", Some(Version(0, 32))),
            ("0.33.0rc1", Some(Version(0, 33))),
            ("0.11.1.dev5+g1a2b3c", Some(Version(0, 11))),
            ("0.32.0+cpu", Some(Version(0, 32))),
            ("v1.0", Some(Version(1, 0))),
            ("dev", None),
            ("", None),
        ] {
            assert_eq!(Version::parse(text), version, "{text}");
        }
        assert!(Version(0, 9) < Version(0, 10) && Version(0, 33) < Version(1, 0));
    }
}
