//! Checks which sensitive paths and sockets of a backend any client can reach.

use crate::endpoints::{ENDPOINT_GROUPS, EndpointGroup, UNAUTHENTICATED_PATHS};
use crate::facts::{BackendFacts, DoctorFacts};
use crate::finding::Remark;
use crate::gather::UNKNOWN_PATH;
use serde_json::{Map, Value};

pub(super) fn exposed(backend: &BackendFacts, _: &DoctorFacts) -> Vec<Remark> {
    if !backend.is_vllm() {
        return Vec::new();
    }
    if backend.has_path(UNKNOWN_PATH).is_none() {
        let remark = Remark::note("which of its paths are open cannot be seen");
        let why = "It answers OPTIONS for every path in the same way, so a proxy is in front of \
                   it.";
        return vec![remark.because(why).remedy("give the URL of vLLM itself")];
    }
    let group = |group: &EndpointGroup| {
        let open = backend.open_paths(group.paths)?;
        let remark = Remark::new(group.severity, format!("{} is open: {open}", group.what));
        Some(remark.because(group.danger).remedy(group.close))
    };
    ENDPOINT_GROUPS.iter().filter_map(group).chain(kv_event_sources(backend)).collect()
}

/// The sockets of KV events. The events contain the tokens of all prompts.
fn kv_event_sources(backend: &BackendFacts) -> Option<Remark> {
    let answer = backend.event_sources.as_ref().ok().filter(|answer| answer.is_ok())?;
    let ranks: Map<String, Value> = serde_json::from_slice(&answer.body).ok()?;
    let endpoints = ranks.values().filter(|rank| rank["enable_kv_cache_events"] == true);
    let endpoints: Vec<&str> = endpoints.filter_map(|rank| rank["endpoint"].as_str()).collect();
    let first = endpoints.first()?;
    let remark =
        Remark::warning(format!("it publishes KV events ({first}) and reveals their address"));
    let why = "The events contain the tokens of all prompts and responses, and neither \
               /kv_event_sources nor the sockets require a key.";
    let change = "let only the consumers of the events reach these sockets and the port of vLLM";
    Some(remark.because(why).remedy(change))
}

pub(super) fn unauthenticated(backend: &BackendFacts, _: &DoctorFacts) -> Vec<Remark> {
    let Some(open) =
        backend.open_paths(&UNAUTHENTICATED_PATHS).filter(|_| backend.is_key_required())
    else {
        return Vec::new();
    };
    let remark = Remark::warning(format!("it requires a key, but not for these paths: {open}"));
    let why = "vLLM protects only paths below /v1, /v2, /inference and /cohere; /invocations \
               generates like /v1/chat/completions.";
    vec![remark.because(why).remedy("let only the gateway reach the port of vLLM")]
}

impl BackendFacts {
    /// The existing ones among `paths`, separated by spaces. `None`: none exists.
    fn open_paths(&self, paths: &[&str]) -> Option<String> {
        let open = paths.iter().copied().filter(|path| self.has_path(path) == Some(true));
        let open = open.collect::<Vec<_>>().join(" ");
        (!open.is_empty()).then_some(open)
    }
}
