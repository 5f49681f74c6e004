//! Replicas beside each other: what should be the same.

use crate::facts::{Facts, Gateway, Replica, Silence};
use crate::finding::Remark;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use tokenweir_core::model::Model;

pub(super) fn fleet(facts: &Facts) -> Vec<Remark> {
    let mut remarks = Vec::new();
    // Of a gateway that does not tell, nothing is known.
    let is_known = !matches!(&facts.gateway, Some(told) if !tells(told));
    if facts.replicas.is_empty() && is_known {
        let remark = Remark::error("there is no replica");
        let change = "add `backends` or `discovery` to the configuration, or give --backend";
        remarks.push(remark.because("The gateway answers 503.").change(change));
    }
    remarks.extend(versions(&facts.replicas));
    remarks.extend(only_here(&facts.replicas));
    remarks.extend(lengths(&facts.replicas));
    remarks
}

fn tells(told: &Result<Gateway, Silence>) -> bool {
    told.as_ref().is_ok_and(|gateway| gateway.status.is_ok())
}

fn versions(replicas: &[Replica]) -> Option<Remark> {
    let replicas = replicas.iter().filter(|replica| replica.is_replica());
    let told = replicas.filter_map(|it| Some((it.version_text()?, it.id.as_str())));
    let by_version = gathered(told);
    if by_version.len() < 2 {
        return None;
    }
    let remark = Remark::note(format!("replicas run different versions: {}", list(&by_version)));
    let why = "One request may be refused where another one is served, and latencies differ for no \
               reason of load.";
    Some(remark.because(why).change("upgrade them together"))
}

/// Models that some serve and others, with models of their own, do not.
fn only_here(replicas: &[Replica]) -> Vec<Remark> {
    let told: Vec<(&str, Arc<[Model]>)> = with_models(replicas);
    let serving = told.iter().flat_map(|(id, models)| {
        models
            .iter()
            .filter(|model| model.parent.is_some())
            .map(|model| (model.id.to_string(), *id))
    });
    let adapters = gathered(serving);
    let has_base = |adapter: &str| -> Vec<&str> {
        let parent = told.iter().flat_map(|(_, models)| models.iter());
        let parent = parent.filter(|model| &*model.id == adapter).find_map(|it| it.parent.clone());
        let serves =
            |models: &[Model]| models.iter().any(|model| Some(&model.id) == parent.as_ref());
        told.iter().filter(|(_, models)| serves(models)).map(|(id, _)| *id).collect()
    };
    let partial = adapters.into_iter().filter_map(|(adapter, here)| {
        let able = has_base(&adapter);
        (here.len() < able.len()).then(|| {
            let remark = Remark::warning(format!(
                "the LoRA adapter {adapter} is on {} of {} replicas that have its model: {}",
                here.len(),
                able.len(),
                here.join(", ")
            ));
            let why = "All its requests go there; the others cannot help.";
            remark
                .because(why)
                .change(format!("vllm serve --enable-lora --lora-modules {adapter}=PATH"))
        })
    });
    partial.collect()
}

fn lengths(replicas: &[Replica]) -> Vec<Remark> {
    let told = with_models(replicas);
    let mut by_model: BTreeMap<String, BTreeMap<u64, Vec<&str>>> = BTreeMap::new();
    for (id, models) in &told {
        for model in models.iter() {
            if let Some(length) = model.entry.get("max_model_len").and_then(|it| it.as_u64()) {
                by_model
                    .entry(model.id.to_string())
                    .or_default()
                    .entry(length)
                    .or_default()
                    .push(id);
            }
        }
    }
    let different = by_model.into_iter().filter(|(_, lengths)| lengths.len() > 1);
    let remark = |(model, lengths): (String, BTreeMap<u64, Vec<&str>>)| {
        let longest = lengths.keys().max().copied().unwrap_or_default();
        let remark =
            Remark::warning(format!("max_model_len of {model} differs: {}", list(&lengths)));
        let why = "A prompt that fits one replica is refused by another (400), as it happens to be \
                   routed.";
        remark.because(why).change(format!("vllm serve --max-model-len {longest}, on all of them"))
    };
    different.map(remark).collect()
}

fn with_models(replicas: &[Replica]) -> Vec<(&str, Arc<[Model]>)> {
    replicas.iter().filter_map(|it| Some((it.id.as_str(), it.served()?))).collect()
}

/// Who says what.
fn gathered<'a, T: Ord>(told: impl Iterator<Item = (T, &'a str)>) -> BTreeMap<T, Vec<&'a str>> {
    let mut gathered: BTreeMap<T, Vec<&str>> = BTreeMap::new();
    for (what, who) in told {
        gathered.entry(what).or_default().push(who);
    }
    gathered
}

fn list<T: Display>(gathered: &BTreeMap<T, Vec<&str>>) -> String {
    let each = gathered.iter().map(|(what, who)| format!("{what} ({})", who.join(", ")));
    each.collect::<Vec<_>>().join(", ")
}
