//! Queries of dashboards. The catalogue knows which labels a metric has, so each is filtered by the
//! variables that it can be filtered by.

use crate::telemetry::catalog;
use crate::telemetry::metric::Label;

/// Operations that generate text.
const GENERATION: &str = "gen_ai_operation_name=~\"chat|text_completion\"";

/// The name of a metric without what a histogram appends to it.
pub fn family(name: &str) -> &str {
    let ends = ["_bucket", "_sum", "_count"];
    ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

/// A metric of the chosen models and replicas; `matchers` are more of them, or empty.
pub(super) fn of(name: &str, matchers: &str) -> String {
    let is_it = |known: &str| known == name || known == family(name);
    let row = catalog::rows().find(|row| is_it(row.name));
    let has = |label| row.is_some_and(|row| row.labels.contains(&label));
    // Replicas' own metrics get the label when they are scraped.
    let has_backend = has(Label::Backend) || name.starts_with("vllm:");
    let filters = [
        has(Label::Model).then_some("gen_ai_request_model=~\"$model\""),
        has_backend.then_some("backend=~\"$backend\""),
        // Times of embeddings and of /tokenize would hide those of answers.
        has(Label::GenAiOperation).then_some(GENERATION),
        (!matchers.is_empty()).then_some(matchers),
    ];
    let filters: Vec<&str> = filters.into_iter().flatten().collect();
    if filters.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", filters.join(",")) }
}

/// How much it grows in a second.
pub(super) fn rate(name: &str, matchers: &str) -> String {
    format!("rate({}[$__rate_interval])", of(name, matchers))
}

/// The same, of all series together.
pub(super) fn total_rate(name: &str, matchers: &str) -> String {
    format!("sum({})", rate(name, matchers))
}

/// The same, by labels.
pub(super) fn rate_by(labels: &str, name: &str, matchers: &str) -> String {
    format!("sum by ({labels}) ({})", rate(name, matchers))
}

/// A gauge, the same for every gateway that watches the replicas.
pub(super) fn gauge_by(labels: &str, name: &str) -> String {
    format!("max by ({labels}) ({})", of(name, ""))
}

/// The mean of what all gateways say, by labels, without those that say NaN: it would hide the others.
pub(super) fn mean_of_gateways(labels: &str, name: &str, matchers: &str) -> String {
    format!("avg by ({labels}) ({} >= 0)", of(name, matchers))
}

/// A quantile of a histogram.
pub(super) fn quantile(quantile: f64, histogram: &str, matchers: &str) -> String {
    quantile_by(quantile, "le", histogram, matchers)
}

/// The same, by labels, of which one is `le`.
pub(super) fn quantile_by(quantile: f64, labels: &str, histogram: &str, matchers: &str) -> String {
    let buckets = rate(&format!("{histogram}_bucket"), matchers);
    format!("histogram_quantile({quantile}, sum by ({labels}) ({buckets}))")
}

/// The mean of a histogram, by labels.
pub(super) fn mean_by(labels: &str, histogram: &str, matchers: &str) -> String {
    let sum = rate_by(labels, &format!("{histogram}_sum"), matchers);
    let count = rate_by(labels, &format!("{histogram}_count"), matchers);
    format!("{sum}\n/ {count}")
}

/// A part of a whole; 0 if there is none of either.
pub(super) fn share(part: &str, whole: &str) -> String {
    format!("{part}\n/ ({whole} > 0) or vector(0)")
}
