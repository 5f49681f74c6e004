//! What is open to whoever reaches the port of a replica.

use crate::endpoints::{GROUPS, Group, UNGUARDED};
use crate::facts::{Facts, Replica};
use crate::finding::Remark;
use crate::gather::NOWHERE;
use serde_json::{Map, Value};

pub(super) fn exposed(replica: &Replica, _: &Facts) -> Vec<Remark> {
    if !replica.is_vllm() {
        return Vec::new();
    }
    if replica.has_path(NOWHERE).is_none() {
        let remark = Remark::note("which of its paths are open cannot be seen");
        let why = "It answers OPTIONS in the same way for any path, so something stands between.";
        return vec![remark.because(why).change("ask it where nothing stands between")];
    }
    let group = |group: &Group| {
        let open = replica.open_of(group.paths)?;
        let remark = Remark::new(group.severity, format!("{} is open: {open}", group.what));
        Some(remark.because(group.danger).change(group.close))
    };
    GROUPS.iter().filter_map(group).chain(event_sources(replica)).collect()
}

/// The sockets of KV events, which carry the tokens of all prompts.
fn event_sources(replica: &Replica) -> Option<Remark> {
    let answer = replica.event_sources.as_ref().ok().filter(|answer| answer.is_ok())?;
    let ranks: Map<String, Value> = serde_json::from_slice(&answer.body).ok()?;
    let endpoints = ranks.values().filter(|rank| rank["enable_kv_cache_events"] == true);
    let endpoints: Vec<&str> = endpoints.filter_map(|rank| rank["endpoint"].as_str()).collect();
    let first = endpoints.first()?;
    let remark =
        Remark::warning(format!("it publishes KV events ({first}), and tells everybody where"));
    let why = "The events carry the tokens of all prompts and answers, and neither /kv_event_sources \
               nor the sockets ask for a key.";
    let change = "let only those that read the events reach these sockets and the port of vLLM";
    Some(remark.because(why).change(change))
}

pub(super) fn unguarded(replica: &Replica, _: &Facts) -> Vec<Remark> {
    let Some(open) = replica.open_of(&UNGUARDED).filter(|_| replica.wants_key()) else {
        return Vec::new();
    };
    let remark = Remark::warning(format!("it wants a key, and these paths work without: {open}"));
    let why = "vLLM guards what begins with /v1, /v2, /inference and /cohere only; /invocations \
               generates like /v1/chat/completions.";
    vec![remark.because(why).change("let only the gateway reach the port of vLLM")]
}

impl Replica {
    /// Those of some paths that lead somewhere.
    fn open_of(&self, paths: &[&str]) -> Option<String> {
        let open = paths.iter().copied().filter(|path| self.has_path(path) == Some(true));
        let open = open.collect::<Vec<_>>().join(" ");
        (!open.is_empty()).then_some(open)
    }
}
