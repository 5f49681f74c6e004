//! Checks for differences between backends that should be equal.

use crate::facts::{BackendFacts, DoctorFacts, GatewayFacts, GatherError};
use crate::finding::Remark;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use tokenweir_engine::model::ServedModel;

pub(super) fn fleet(facts: &DoctorFacts) -> Vec<Remark> {
    let mut remarks = Vec::new();
    // The backends of a gateway are unknown if its status cannot be read.
    let is_known = !matches!(&facts.gateway, Some(gateway) if !is_gateway_readable(gateway));
    if facts.backends.is_empty() && is_known {
        let remark = Remark::error("there is no backend");
        let remedy = "add `backends` or `discovery` to the configuration, or give --backend";
        remarks.push(
            remark
                .because("The gateway answers all requests with 503.")
                .remedy(remedy),
        );
    }
    remarks.extend(check_versions(&facts.backends));
    remarks.extend(check_adapters(&facts.backends));
    remarks.extend(check_context_lengths(&facts.backends));
    remarks
}

fn is_gateway_readable(gateway: &Result<GatewayFacts, GatherError>) -> bool {
    gateway.as_ref().is_ok_and(|gateway| gateway.status.is_ok())
}

/// Reports backends of different versions.
fn check_versions(backends: &[BackendFacts]) -> Option<Remark> {
    let backends = backends.iter().filter(|backend| backend.is_backend());
    let versions =
        backends.filter_map(|backend| Some((backend.version_text()?, backend.id.as_str())));
    let by_version = group_by_value(versions);
    if by_version.len() < 2 {
        return None;
    }
    let remark = Remark::note(format!(
        "backends run different versions: {}",
        format_groups(&by_version)
    ));
    let reason = "A request that one backend serves may be refused by another, and latencies \
                  differ for reasons other than load.";
    Some(
        remark
            .because(reason)
            .remedy("upgrade all of them to one version"),
    )
}

/// Reports LoRA adapters that only some of the backends with their base model serve.
fn check_adapters(backends: &[BackendFacts]) -> Vec<Remark> {
    let listings: Vec<(&str, Arc<[ServedModel]>)> = backends_with_models(backends);
    let serving = listings.iter().flat_map(|(id, models)| {
        models
            .iter()
            .filter(|model| model.parent.is_some())
            .map(|model| (model.id.to_string(), *id))
    });
    let adapters = group_by_value(serving);
    let with_base_model = |adapter: &str| -> Vec<&str> {
        let models = listings.iter().flat_map(|(_, models)| models.iter());
        let parent = models
            .filter(|model| &*model.id == adapter)
            .find_map(|model| model.parent.clone());
        let serves = |models: &[ServedModel]| {
            models
                .iter()
                .any(|model| Some(&model.id) == parent.as_ref())
        };
        listings
            .iter()
            .filter(|(_, models)| serves(models))
            .map(|(id, _)| *id)
            .collect()
    };
    let partial = adapters.into_iter().filter_map(|(adapter, serving)| {
        let with_base = with_base_model(&adapter);
        (serving.len() < with_base.len()).then(|| {
            let remark = Remark::warning(format!(
                "the LoRA adapter {adapter} is on {} of {} backends that have its base model: {}",
                serving.len(),
                with_base.len(),
                serving.join(", ")
            ));
            let reason = "Only these backends can serve its requests.";
            remark.because(reason).remedy(format!(
                "vllm serve --enable-lora --lora-modules {adapter}=PATH"
            ))
        })
    });
    partial.collect()
}

/// Reports models whose maximum context length differs between backends.
fn check_context_lengths(backends: &[BackendFacts]) -> Vec<Remark> {
    let listings = backends_with_models(backends);
    let mut by_model: BTreeMap<String, BTreeMap<u64, Vec<&str>>> = BTreeMap::new();
    for (id, models) in &listings {
        for model in models.iter() {
            let length = model
                .entry
                .get("max_model_len")
                .and_then(|length| length.as_u64());
            if let Some(length) = length {
                by_model
                    .entry(model.id.to_string())
                    .or_default()
                    .entry(length)
                    .or_default()
                    .push(id);
            }
        }
    }
    let different = by_model
        .into_iter()
        .filter(|(_, lengths)| lengths.len() > 1);
    let remark = |(model, lengths): (String, BTreeMap<u64, Vec<&str>>)| {
        let longest = lengths.keys().max().copied().unwrap_or_default();
        let groups = format_groups(&lengths);
        let remark = Remark::note(format!("max_model_len of {model} differs: {groups}"));
        let reason = "The gateway sends long requests only to the backends whose context is long \
                      enough, and these take all of this load.";
        remark.because(reason).remedy(format!(
            "vllm serve --max-model-len {longest}, on all of them"
        ))
    };
    different.map(remark).collect()
}

/// The names and the models of the backends whose model list could be read.
fn backends_with_models(backends: &[BackendFacts]) -> Vec<(&str, Arc<[ServedModel]>)> {
    backends
        .iter()
        .filter_map(|backend| Some((backend.id.as_str(), backend.served()?)))
        .collect()
}

/// Groups pairs of a value and a backend name by the value.
fn group_by_value<'a, T: Ord>(
    values: impl Iterator<Item = (T, &'a str)>,
) -> BTreeMap<T, Vec<&'a str>> {
    let mut groups: BTreeMap<T, Vec<&str>> = BTreeMap::new();
    for (value, id) in values {
        groups.entry(value).or_default().push(id);
    }
    groups
}

fn format_groups<T: Display>(groups: &BTreeMap<T, Vec<&str>>) -> String {
    let groups = groups
        .iter()
        .map(|(value, ids)| format!("{value} ({})", ids.join(", ")));
    groups.collect::<Vec<_>>().join(", ")
}
