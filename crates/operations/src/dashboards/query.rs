//! Builds the Prometheus queries of dashboards. A metric of the catalogue is filtered by the variable
//! `$gateway` of the dashboard, and by `$model` and `$backend` if it has their labels.

use crate::catalogue::MetricCatalogue;

/// The matcher of the chosen gateways. Prometheus adds the label `instance` to each scraped series.
/// The value "All" of the variable also matches series without the label.
const GATEWAY_MATCHER: &str = "instance=~\"$gateway\"";
/// The matcher of the operations that generate text.
const GENERATION_MATCHER: &str = "gen_ai_operation_name=~\"chat|text_completion\"";

/// A metric with label matchers for the chosen gateways, models and backends. `matchers` are additional label
/// matchers, or an empty text.
pub(super) fn filtered_metric(metrics: &MetricCatalogue, name: &str, matchers: &str) -> String {
    let has_label = |label| metrics.has_label(name, label);
    let is_duration = has_label("gen_ai_operation_name") && has_label("outcome");
    let filters = [
        metrics.contains(name).then_some(GATEWAY_MATCHER),
        has_label("gen_ai_request_model").then_some("gen_ai_request_model=~\"$model\""),
        has_label("backend").then_some("backend=~\"$backend\""),
        // Without this matcher, requests for embeddings and to /tokenize would distort the
        // durations of requests that generate text.
        has_label("gen_ai_operation_name").then_some(GENERATION_MATCHER),
        // The duration of a request that failed, or whose client disconnected, says nothing about
        // the time of complete responses.
        is_duration.then_some("outcome=\"ok\""),
        (!matchers.is_empty()).then_some(matchers),
    ];
    let filters: Vec<&str> = filters.into_iter().flatten().collect();
    if filters.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", filters.join(",")) }
}

/// The rate of each series of a counter.
pub(super) fn rate(metrics: &MetricCatalogue, name: &str, matchers: &str) -> String {
    format!("rate({}[$__rate_interval])", filtered_metric(metrics, name, matchers))
}

/// The rate of a counter, summed over all series.
pub(super) fn total_rate(metrics: &MetricCatalogue, name: &str, matchers: &str) -> String {
    format!("sum({})", rate(metrics, name, matchers))
}

/// The rate of a counter, summed over the series with equal `labels`.
pub(super) fn rate_by(
    metrics: &MetricCatalogue,
    labels: &str,
    name: &str,
    matchers: &str,
) -> String {
    format!("sum by ({labels}) ({})", rate(metrics, name, matchers))
}

/// The maximum of a gauge over the series with equal `labels`. All gateways export about the same
/// value for a backend.
pub(super) fn gauge_by(metrics: &MetricCatalogue, labels: &str, name: &str) -> String {
    format!("max by ({labels}) ({})", filtered_metric(metrics, name, ""))
}

/// The mean of a gauge over the series of all gateways with equal `labels`. The query excludes NaN
/// by `>= 0`, because one NaN would make the mean NaN.
pub(super) fn mean_of_gateways(
    metrics: &MetricCatalogue,
    labels: &str,
    name: &str,
    matchers: &str,
) -> String {
    format!("avg by ({labels}) ({} >= 0)", filtered_metric(metrics, name, matchers))
}

/// A quantile of a histogram over all series, from 0 to 1.
pub(super) fn quantile(
    metrics: &MetricCatalogue,
    quantile: f64,
    histogram: &str,
    matchers: &str,
) -> String {
    quantile_by(metrics, quantile, "le", histogram, matchers)
}

/// A quantile of a histogram for each combination of `labels`, which must include `le`.
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

/// The rate of a counter of engines, for each combination of `labels`, which must include
/// `backend`. All gateways export the same counter of an engine, so their values are not summed.
pub(super) fn engine_rate(metrics: &MetricCatalogue, labels: &str, name: &str) -> String {
    format!("max by ({labels}) ({})", rate(metrics, name, ""))
}

/// The ratio of two counters of engines for each backend: a mean, or a share.
pub(super) fn engine_mean(metrics: &MetricCatalogue, sum: &str, count: &str) -> String {
    let [sum, count] = [sum, count].map(|name| engine_rate(metrics, "backend", name));
    format!("{sum}\n/ {count}")
}

/// The mean of the values of a histogram for each combination of `labels`.
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

/// The ratio of the queries `part` and `total`. It is 0 if `total` is 0 or there is no data.
pub(super) fn share(part: &str, total: &str) -> String {
    format!("{part}\n/ ({total} > 0) or vector(0)")
}
