//! Queries of dashboards. The catalogue knows which labels a metric has, so each is filtered by the
//! variables that it can be filtered by.

use crate::catalogue::Catalogue;

/// Operations that generate text.
const GENERATION: &str = "gen_ai_operation_name=~\"chat|text_completion\"";

/// A metric of the chosen models and replicas; `matchers` are more of them, or empty.
pub(super) fn of(metrics: &Catalogue, name: &str, matchers: &str) -> String {
    let has = |label| metrics.has_label(name, label);
    // Replicas' own metrics get the label when they are scraped.
    let has_backend = has("backend") || name.starts_with("vllm:");
    let filters = [
        has("gen_ai_request_model").then_some("gen_ai_request_model=~\"$model\""),
        has_backend.then_some("backend=~\"$backend\""),
        // Times of embeddings and of /tokenize would hide those of answers.
        has("gen_ai_operation_name").then_some(GENERATION),
        (!matchers.is_empty()).then_some(matchers),
    ];
    let filters: Vec<&str> = filters.into_iter().flatten().collect();
    if filters.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", filters.join(",")) }
}

/// How much it grows in a second.
pub(super) fn rate(metrics: &Catalogue, name: &str, matchers: &str) -> String {
    format!("rate({}[$__rate_interval])", of(metrics, name, matchers))
}

/// The same, of all series together.
pub(super) fn total_rate(metrics: &Catalogue, name: &str, matchers: &str) -> String {
    format!("sum({})", rate(metrics, name, matchers))
}

/// The same, by labels.
pub(super) fn rate_by(metrics: &Catalogue, labels: &str, name: &str, matchers: &str) -> String {
    format!("sum by ({labels}) ({})", rate(metrics, name, matchers))
}

/// A gauge, the same for every gateway that watches the replicas.
pub(super) fn gauge_by(metrics: &Catalogue, labels: &str, name: &str) -> String {
    format!("max by ({labels}) ({})", of(metrics, name, ""))
}

/// The mean of what all gateways say, by labels, without those that say NaN: it would hide the others.
pub(super) fn mean_of_gateways(
    metrics: &Catalogue,
    labels: &str,
    name: &str,
    matchers: &str,
) -> String {
    format!("avg by ({labels}) ({} >= 0)", of(metrics, name, matchers))
}

/// A quantile of a histogram.
pub(super) fn quantile(
    metrics: &Catalogue,
    quantile: f64,
    histogram: &str,
    matchers: &str,
) -> String {
    quantile_by(metrics, quantile, "le", histogram, matchers)
}

/// The same, by labels, of which one is `le`.
pub(super) fn quantile_by(
    metrics: &Catalogue,
    quantile: f64,
    labels: &str,
    histogram: &str,
    matchers: &str,
) -> String {
    let buckets = rate(metrics, &format!("{histogram}_bucket"), matchers);
    format!("histogram_quantile({quantile}, sum by ({labels}) ({buckets}))")
}

/// The mean of a histogram, by labels.
pub(super) fn mean_by(
    metrics: &Catalogue,
    labels: &str,
    histogram: &str,
    matchers: &str,
) -> String {
    let sum = rate_by(metrics, labels, &format!("{histogram}_sum"), matchers);
    let count = rate_by(metrics, labels, &format!("{histogram}_count"), matchers);
    format!("{sum}\n/ {count}")
}

/// A part of a whole; 0 if there is none of either.
pub(super) fn share(part: &str, whole: &str) -> String {
    format!("{part}\n/ ({whole} > 0) or vector(0)")
}
