//! Checks for differences between backends that should be equal.

use crate::facts::{BackendFacts, DoctorFacts};
use crate::finding::Remark;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use tokenweir_engine::model::ServedModel;

pub(super) fn fleet(facts: &DoctorFacts) -> Vec<Remark> {
    let mut remarks = Vec::new();
    // The backends of a gateway are unknown if its status cannot be read.
    let is_known = match &facts.gateway {
        None => true,
        Some(gateway) => gateway.as_ref().is_ok_and(|gateway| gateway.status.is_ok()),
    };
    if facts.backends.is_empty() && is_known {
        remarks.push(
            Remark::error("there is no backend")
                .because("The gateway answers all requests with 503.")
                .remedy("add `backends` or `discovery` to the configuration, or give --backend"),
        );
    }
    remarks.extend(check_versions(&facts.backends));
    remarks.extend(check_adapters(&facts.backends));
    remarks.extend(check_context_lengths(&facts.backends));
    remarks
}

/// Reports backends of different versions.
fn check_versions(backends: &[BackendFacts]) -> Option<Remark> {
    let mut by_version: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for backend in backends.iter().filter(|backend| backend.is_backend()) {
        if let Some(version) = backend.version_text() {
            by_version.entry(version).or_default().push(&backend.id);
        }
    }
    if by_version.len() < 2 {
        return None;
    }
    let groups = format_groups(&by_version);
    Some(
        Remark::note(format!("backends run different versions: {groups}"))
            .because(
                "A request that one backend serves may be refused by another, and latencies \
                 differ for reasons other than load.",
            )
            .remedy("upgrade all of them to one version"),
    )
}

/// Reports LoRA adapters that only some of the backends with their base model serve.
fn check_adapters(backends: &[BackendFacts]) -> Vec<Remark> {
    let listings = backends_with_models(backends);
    // For each adapter: its base model, and the backends that serve the adapter.
    let mut adapters: BTreeMap<String, (Arc<str>, Vec<&str>)> = BTreeMap::new();
    for (id, models) in &listings {
        for model in models.iter() {
            if let Some(parent) = &model.parent {
                let adapter = adapters.entry(model.id.to_string());
                let (_, serving) = adapter.or_insert_with(|| (parent.clone(), Vec::new()));
                serving.push(id);
            }
        }
    }
    let mut remarks = Vec::new();
    for (adapter, (parent, serving)) in adapters {
        let has_base = |models: &[ServedModel]| models.iter().any(|model| model.id == parent);
        let bases = listings.iter().filter(|(_, models)| has_base(models));
        let total = bases.count();
        if serving.len() >= total {
            continue;
        }
        remarks.push(
            Remark::warning(format!(
                "the LoRA adapter {adapter} is on {} of {total} backends that have its base model: {}",
                serving.len(),
                serving.join(", ")
            ))
            .because("Only these backends can serve its requests.")
            .remedy(format!(
                "vllm serve --enable-lora --lora-modules {adapter}=PATH"
            )),
        );
    }
    remarks
}

/// Reports models whose maximum context length differs between backends.
fn check_context_lengths(backends: &[BackendFacts]) -> Vec<Remark> {
    let listings = backends_with_models(backends);
    let mut by_model: BTreeMap<String, BTreeMap<u64, Vec<&str>>> = BTreeMap::new();
    for (id, models) in &listings {
        for model in models.iter() {
            let length = model.entry.get("max_model_len");
            if let Some(length) = length.and_then(|length| length.as_u64()) {
                let lengths = by_model.entry(model.id.to_string()).or_default();
                lengths.entry(length).or_default().push(id);
            }
        }
    }
    let mut remarks = Vec::new();
    for (model, lengths) in by_model {
        if lengths.len() < 2 {
            continue;
        }
        let longest = lengths.keys().max().copied().unwrap_or_default();
        let groups = format_groups(&lengths);
        remarks.push(
            Remark::note(format!("max_model_len of {model} differs: {groups}"))
                .because(
                    "The gateway sends long requests only to the backends whose context is long \
                     enough, and these take all of this load.",
                )
                .remedy(format!(
                    "vllm serve --max-model-len {longest}, on all of them"
                )),
        );
    }
    remarks
}

/// The names and the models of the backends whose model list could be read.
fn backends_with_models(backends: &[BackendFacts]) -> Vec<(&str, Arc<[ServedModel]>)> {
    backends
        .iter()
        .filter_map(|backend| Some((backend.id.as_str(), backend.served()?)))
        .collect()
}

fn format_groups<T: Display>(groups: &BTreeMap<T, Vec<&str>>) -> String {
    let groups = groups
        .iter()
        .map(|(value, ids)| format!("{value} ({})", ids.join(", ")));
    groups.collect::<Vec<_>>().join(", ")
}
