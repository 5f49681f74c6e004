//! Checks of sensitive paths and sockets of a backend that any client can reach.

use crate::endpoints::{ENDPOINT_GROUPS, UNAUTHENTICATED_PATHS};
use crate::facts::{BackendFacts, DoctorFacts};
use crate::finding::Remark;
use crate::gather::UNKNOWN_PATH;

/// The remedy for paths and sockets that need no key.
const CLOSE_PORT: &str = "let only the gateway reach the port of vLLM";

/// Reports sockets of KV events, and reachable paths that should be closed for clients.
pub(super) fn exposed(backend: &BackendFacts, _: &DoctorFacts) -> Vec<Remark> {
    if !backend.is_vllm() {
        return Vec::new();
    }
    if backend.has_path(UNKNOWN_PATH).is_none() {
        return vec![unknown_paths(backend)];
    }
    let mut remarks = Vec::new();
    for group in &ENDPOINT_GROUPS {
        if let Some(open) = backend.open_paths(group.paths) {
            let observation = format!("{} is open: {open}", group.purpose);
            let remark = Remark::new(group.severity, observation);
            remarks.push(remark.because(group.risk).remedy(group.remedy));
        }
    }
    remarks.extend(kv_event_sources(backend));
    remarks
}

/// The remark about a backend whose responses do not show which paths exist.
fn unknown_paths(backend: &BackendFacts) -> Remark {
    let remark = Remark::note("which of its paths are open cannot be seen");
    if backend.is_rust_front_end() {
        return remark
            .because("vLLM's Rust front end answers OPTIONS for every path in the same way.")
            .remedy(CLOSE_PORT);
    }
    remark
        .because("It answers OPTIONS for every path in the same way, so a proxy is in front of it.")
        .remedy("give the URL of vLLM itself")
}

/// Reports that vLLM publishes KV events and reveals their sockets. The events contain the tokens
/// of all prompts.
fn kv_event_sources(backend: &BackendFacts) -> Option<Remark> {
    let endpoints = backend.event_endpoints();
    let first = endpoints.first()?;
    let observation = format!("it publishes KV events ({first}) and reveals their address");
    Some(
        Remark::warning(observation)
            .because(
                "The events contain the tokens of all prompts and responses, and neither \
                 /kv_event_sources nor the sockets require a key.",
            )
            .remedy(
                "let only the consumers of the events reach these sockets and the port of vLLM",
            ),
    )
}

/// Reports paths that a backend serves without a key, although the backend requires a key for other paths.
pub(super) fn unauthenticated(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    if !backend.is_key_required() {
        return None;
    }
    let open = backend.open_paths(&UNAUTHENTICATED_PATHS)?;
    Some(
        Remark::warning(format!(
            "it requires a key, but not for these paths: {open}"
        ))
        .because(
            "vLLM protects only paths below /v1, /v2, /inference and /cohere; /invocations \
                 generates like /v1/chat/completions.",
        )
        .remedy(CLOSE_PORT),
    )
}

impl BackendFacts {
    /// The paths of `paths` that exist on the backend, separated by spaces. `None`: no path exists.
    fn open_paths(&self, paths: &[&str]) -> Option<String> {
        let mut open = paths.to_vec();
        open.retain(|path| self.has_path(path) == Some(true));
        (!open.is_empty()).then(|| open.join(" "))
    }
}
