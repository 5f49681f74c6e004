//! Rules about objectives and buckets: each is a label, and is about something that there is.

use super::Config;
use super::rules::{Broken, broken};
use crate::telemetry::buckets::{Buckets, BucketsError, histograms};
use tokenweir_core::error::listed;

/// Most objectives.
const MAX_OBJECTIVES: usize = 20;

/// The first rule that is broken.
pub(super) fn check(config: &Config) -> Result<(), Broken> {
    if config.slos.len() > MAX_OBJECTIVES {
        return Err(broken("slos", "each objective multiplies series; no more than 20"));
    }
    for (index, slo) in config.slos.iter().enumerate() {
        let path = |key: &str| format!("slos.{index}.{key}");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !(1..=32).contains(&slo.name.len()) || !slo.name.chars().all(is_plain) {
            let problem = "a name has 1 to 32 letters, digits and any of `-_.`";
            return Err(broken(&path("name"), problem));
        }
        if let Some(earlier) = config.slos[..index].iter().position(|it| it.name == slo.name) {
            let problem = format!("`{}` is already the name of slos[{earlier}]", slo.name);
            return Err(broken(&path("name"), problem));
        }
        let tiers = &config.tiers;
        let names = || tiers.names.iter().chain(tiers.keys.iter().map(|key| &key.tier));
        if let Some(tier) = slo.tier.as_ref().filter(|tier| names().all(|name| name != *tier)) {
            let known: Vec<&String> = names().collect();
            let problem = match known.len() {
                0 => format!("`{tier}` is not a tier: `tiers` names none"),
                _ => format!("there is no tier `{tier}`; there are {}", listed(known.into_iter())),
            };
            return Err(broken(&path("tier"), problem));
        }
    }
    let buckets = Buckets::new(&config.metrics.buckets, &config.slos);
    buckets.map(|_| ()).map_err(|error| wrong_buckets(&error))
}

fn wrong_buckets(error: &BucketsError) -> Broken {
    let path = |metric: &str| format!("metrics.buckets.{metric}");
    match error {
        BucketsError::Unknown(metric) => {
            let similarity = |name: &&str| strsim::jaro_winkler(metric, name);
            let nearest = histograms().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
            let problem = format!("{error}; did you mean `{}`?", nearest.unwrap_or_default());
            broken(&path(metric), problem)
        }
        BucketsError::Unordered(metric) => broken(&path(metric), error.to_string()),
        BucketsError::TooMany { metric, .. } => Broken {
            paths: vec![path(metric), "slos".to_owned()],
            problem: format!("`{metric}`: {error}"),
        },
    }
}
