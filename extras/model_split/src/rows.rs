//! Status and metrics of split models.

use super::evidence::{Fault, MIN_SPAN as SHOWN_SPAN};
use super::model_splits::ModelSplits;
use super::split::{Split, Version};
use super::verdict::VersionTakenOut;
use serde::Serialize;
use std::time::Instant;
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::{StatusBlock, StatusSnapshot};

/// The metrics of split models.
pub const ROWS: &[MetricDescriptor] = &[row(
    "tokenweir_model_version_share_ratio",
    "Share of the requests for a split model that the version gets. 0: its weight is 0, or the guard has taken it out.",
    &[
        variable(
            "split_model",
            |_| Vec::new(),
            "a model of the configuration with `split`",
        ),
        variable("version", |_| Vec::new(), "a model of its `split`"),
    ],
    Status(|status, emit| {
        let splits = status.blocks.get::<ModelSplitsStatus>();
        for split in splits.iter().flat_map(|splits| &splits.0) {
            for version in &split.versions {
                emit(&[&split.model, &version.model], version.share);
            }
        }
    }),
)];

#[derive(Debug, Serialize)]
struct ModelSplitsStatus(Vec<SplitStatus>);

#[derive(Debug, Serialize)]
struct SplitStatus {
    model: String,
    /// Whether the guard takes bad versions out.
    guard: bool,
    versions: Vec<VersionStatus>,
}

#[derive(Debug, Serialize)]
struct VersionStatus {
    model: String,
    weight: u32,
    /// Share of the requests that the version gets.
    share: f64,
    /// Requests of the last minute that succeeded or failed.
    recent_requests: u64,
    /// Number of these requests that failed.
    recent_errors: u64,
    /// Why the version was taken out. `None`: the version gets requests.
    taken_out: Option<VersionTakenOut>,
}

impl StatusBlock for ModelSplitsStatus {
    const KEY: Option<&'static str> = Some("model_splits");
}

impl SplitStatus {
    fn new(split: &Split, now: Instant) -> Self {
        let serving = split.serving();
        let weights: u64 = serving.map(|version| u64::from(version.weight)).sum();
        let versions = split.versions.iter();
        Self {
            model: split.name.to_string(),
            guard: split.is_guarded,
            versions: versions
                .map(|version| VersionStatus::new(version, weights, now))
                .collect(),
        }
    }
}

impl VersionStatus {
    /// The status of a version at `now`. `weights`: the sum of the weights of all versions that get requests.
    fn new(version: &Version, weights: u64, now: Instant) -> Self {
        let errors = version.evidence(SHOWN_SPAN, now).share(Fault::Errors);
        let removal = version.removal.get().cloned();
        let share = match removal {
            Some(_) => 0.0,
            None => f64::from(version.weight) / weights as f64,
        };
        Self {
            model: version.name.to_string(),
            weight: version.weight,
            share,
            recent_requests: errors.requests,
            recent_errors: errors.bad,
            taken_out: removal,
        }
    }
}

pub(crate) fn add_status(splits: &ModelSplits, status: &mut StatusSnapshot, now: Instant) {
    let splits = splits.splits();
    if !splits.is_empty() {
        let blocks = splits.iter().map(|split| SplitStatus::new(split, now));
        status.blocks.add(ModelSplitsStatus(blocks.collect()));
    }
}
