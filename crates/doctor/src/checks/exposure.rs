//! Checks of sensitive paths and sockets of a backend that any client can reach.

use crate::endpoints::{ENDPOINT_GROUPS, EndpointGroup, UNAUTHENTICATED_PATHS};
use crate::facts::{BackendFacts, DoctorFacts};
use crate::finding::Remark;
use crate::gather::UNKNOWN_PATH;

/// Reports sockets of KV events, and reachable paths that should be closed for clients.
pub(super) fn exposed(backend: &BackendFacts, _: &DoctorFacts) -> Vec<Remark> {
    if !backend.is_vllm() {
        return Vec::new();
    }
    if backend.has_path(UNKNOWN_PATH).is_none() {
        let remark = Remark::note("which of its paths are open cannot be seen");
        let (reason, remedy) = if backend.is_rust_front_end() {
            let reason = "vLLM's Rust front end answers OPTIONS for every path in the same way.";
            (reason, "let only the gateway reach the port of vLLM")
        } else {
            let reason = "It answers OPTIONS for every path in the same way, so a proxy is in front \
                          of it.";
            (reason, "give the URL of vLLM itself")
        };
        return vec![remark.because(reason).remedy(remedy)];
    }
    let group = |group: &EndpointGroup| {
        let open = backend.open_paths(group.paths)?;
        let remark = Remark::new(group.severity, format!("{} is open: {open}", group.purpose));
        Some(remark.because(group.risk).remedy(group.remedy))
    };
    ENDPOINT_GROUPS
        .iter()
        .filter_map(group)
        .chain(kv_event_sources(backend))
        .collect()
}

/// Reports that vLLM publishes KV events and reveals their sockets. The events contain the tokens
/// of all prompts.
fn kv_event_sources(backend: &BackendFacts) -> Option<Remark> {
    let endpoints = backend.event_endpoints();
    let first = endpoints.first()?;
    let remark = Remark::warning(format!(
        "it publishes KV events ({first}) and reveals their address"
    ));
    let reason = "The events contain the tokens of all prompts and responses, and neither \
                  /kv_event_sources nor the sockets require a key.";
    let remedy = "let only the consumers of the events reach these sockets and the port of vLLM";
    Some(remark.because(reason).remedy(remedy))
}

/// Reports paths that a backend serves without a key, although the backend requires a key for other paths.
pub(super) fn unauthenticated(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    if !backend.is_key_required() {
        return None;
    }
    let open = backend.open_paths(&UNAUTHENTICATED_PATHS)?;
    let remark = Remark::warning(format!(
        "it requires a key, but not for these paths: {open}"
    ));
    let reason = "vLLM protects only paths below /v1, /v2, /inference and /cohere; /invocations \
                  generates like /v1/chat/completions.";
    Some(
        remark
            .because(reason)
            .remedy("let only the gateway reach the port of vLLM"),
    )
}

impl BackendFacts {
    /// The paths of `paths` that exist on the backend, separated by spaces. `None`: no path exists.
    fn open_paths(&self, paths: &[&str]) -> Option<String> {
        let open = paths
            .iter()
            .copied()
            .filter(|path| self.has_path(path) == Some(true));
        let open = open.collect::<Vec<_>>().join(" ");
        (!open.is_empty()).then_some(open)
    }
}
