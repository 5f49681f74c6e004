//! Prometheus queries of dashboards. Each metric is filtered by those variables of the dashboard
//! whose labels it has according to the catalogue.

use crate::catalogue::MetricCatalogue;

/// Operations that generate text.
const GENERATION_MATCHER: &str = "gen_ai_operation_name=~\"chat|text_completion\"";

/// A metric with matchers for the chosen models and backends. `matchers` are further ones, or
/// empty.
pub(super) fn filtered_metric(metrics: &MetricCatalogue, name: &str, matchers: &str) -> String {
    let has = |label| metrics.has_label(name, label);
    // The metrics of engines get the label `backend` from the scrape configuration.
    let has_backend = has("backend") || name.starts_with("vllm:");
    let filters = [
        has("gen_ai_request_model").then_some("gen_ai_request_model=~\"$model\""),
        has_backend.then_some("backend=~\"$backend\""),
        // Durations of embeddings and of /tokenize would distort those of generated text.
        has("gen_ai_operation_name").then_some(GENERATION_MATCHER),
        (!matchers.is_empty()).then_some(matchers),
    ];
    let filters: Vec<&str> = filters.into_iter().flatten().collect();
    if filters.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", filters.join(",")) }
}

/// The rate of a counter.
pub(super) fn rate(metrics: &MetricCatalogue, name: &str, matchers: &str) -> String {
    format!("rate({}[$__rate_interval])", filtered_metric(metrics, name, matchers))
}

/// The rate of a counter, summed over all series.
pub(super) fn total_rate(metrics: &MetricCatalogue, name: &str, matchers: &str) -> String {
    format!("sum({})", rate(metrics, name, matchers))
}

/// The rate of a counter, summed by labels.
pub(super) fn rate_by(
    metrics: &MetricCatalogue,
    labels: &str,
    name: &str,
    matchers: &str,
) -> String {
    format!("sum by ({labels}) ({})", rate(metrics, name, matchers))
}

/// The maximum of a gauge by labels. All gateways export the same value for a backend.
pub(super) fn gauge_by(metrics: &MetricCatalogue, labels: &str, name: &str) -> String {
    format!("max by ({labels}) ({})", filtered_metric(metrics, name, ""))
}

/// The mean of a gauge over all gateways, by labels. `>= 0` excludes NaN, which would make the mean
/// NaN.
pub(super) fn mean_of_gateways(
    metrics: &MetricCatalogue,
    labels: &str,
    name: &str,
    matchers: &str,
) -> String {
    format!("avg by ({labels}) ({} >= 0)", filtered_metric(metrics, name, matchers))
}

/// A quantile of a histogram over all series.
pub(super) fn quantile(
    metrics: &MetricCatalogue,
    quantile: f64,
    histogram: &str,
    matchers: &str,
) -> String {
    quantile_by(metrics, quantile, "le", histogram, matchers)
}

/// A quantile of a histogram by labels, one of which is `le`.
pub(super) fn quantile_by(
    metrics: &MetricCatalogue,
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
    metrics: &MetricCatalogue,
    labels: &str,
    histogram: &str,
    matchers: &str,
) -> String {
    let sum = rate_by(metrics, labels, &format!("{histogram}_sum"), matchers);
    let count = rate_by(metrics, labels, &format!("{histogram}_count"), matchers);
    format!("{sum}\n/ {count}")
}

/// The ratio of two queries; 0 if there is no data.
pub(super) fn share(part: &str, whole: &str) -> String {
    format!("{part}\n/ ({whole} > 0) or vector(0)")
}
