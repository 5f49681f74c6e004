//! The metrics page. Its names are valid, Prometheus can parse it, it has every time series from the start, and
//! clients cannot create more.

use crate::documentation::read;
use crate::support::scripted_backend::{FINISH, ROLE, USAGE, WORD, json, stream_of};
use crate::support::test_gateway::{CHAT, Running, Setup, gateway_answering, start_with};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use tokenweir::app::metrics::metric_rows;
use tokenweir_canary::CanaryRequests;
use tokenweir_gateway::metric::{KnownLabelValues, MetricDescriptor, MetricLabel};
use tokenweir_gateway::telemetry::metrics_registry::{MetricDetail, MetricsLevel};
use tokenweir_gateway::telemetry::otel::Semconv;
use tokenweir_option::GatewayOption;
use tokenweir_protocol::metric_kind::MetricKind;
use tokenweir_quality::QualitySettings;
use tokenweir_request::slo::Objective;
use tokenweir_sleep::SleepMode;

/// Whether a metric is on the page at the level `full` with the default version of the GenAI conventions.
fn exists_by_default(row: &MetricDescriptor) -> bool {
    MetricsLevel::Full.detail(row, Semconv::default()) != MetricDetail::Omitted
}

/// Parses the metrics page in a response. Returns each sample as (time series, value). Fails if a line is not
/// valid in the format.
pub(crate) fn samples(page: &str) -> Vec<(String, f64)> {
    let body = page.split("\r\n\r\n").nth(1).unwrap();
    let mut typed = BTreeSet::new();
    let mut samples = Vec::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().unwrap();
            assert!(typed.insert(name.to_owned()), "{name} stands twice");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        let is_typed = typed.contains(name) || family.is_some_and(|family| typed.contains(family));
        assert!(is_typed, "{name} has no type");
        assert_eq!(series.contains('{'), series.ends_with('}'), "{line}");
        samples.push((series.to_owned(), value.parse().unwrap()));
    }
    let distinct: BTreeSet<&String> = samples.iter().map(|(series, _)| series).collect();
    assert_eq!(distinct.len(), samples.len(), "a duplicate series");
    samples
}

pub(crate) fn value(page: &str, series: &str) -> f64 {
    let samples = samples(page);
    let sample = samples.iter().find(|(known, _)| known == series);
    assert!(sample.is_some(), "no {series} in\n{page}");
    sample.unwrap().1
}

pub(crate) fn assert_value(page: &str, series: &str, expected: f64) {
    let found = value(page, series);
    assert!(
        (found - expected).abs() < 1e-9,
        "{series}: {found}, not {expected}"
    );
}

impl Running {
    pub(crate) async fn assert_value(&self, series: &str, expected: f64) {
        assert_value(&self.admin("/metrics").await, series, expected);
    }
}

/// Returns the sum of the samples of a metric whose labels contain each of these texts.
pub(crate) fn sum(page: &str, metric: &str, labels: &[&str]) -> f64 {
    let is_it = |series: &str| {
        let has_labels = labels.iter().all(|label| series.contains(label));
        series.split('{').next() == Some(metric) && has_labels
    };
    samples(page)
        .iter()
        .filter(|(series, _)| is_it(series))
        .map(|(_, value)| value)
        .sum()
}

#[test]
fn names_units_and_helps_follow_prometheus() {
    let mut names = BTreeSet::new();
    for row in metric_rows() {
        assert!(names.insert(row.name), "{} stands twice", row.name);
        if matches!(row.kind, MetricKind::Histogram(_)) {
            // `gen_ai_client_token_usage` is no unit, but a metric of the OpenTelemetry conventions, which
            // has no suffix.
            let units = ["_seconds", "_tokens", "_ratio", "gen_ai_client_token_usage"];
            assert!(
                units.iter().any(|unit| row.name.ends_with(unit)),
                "{}",
                row.name
            );
        }
        assert!(
            row.help.ends_with('.') && row.help.len() > 10,
            "{}",
            row.name
        );
        let labels: BTreeSet<&str> = row.labels.iter().map(|label| label.name).collect();
        assert_eq!(
            labels.len(),
            row.labels.len(),
            "{} has a duplicate label",
            row.name
        );
        if let MetricKind::Histogram(bounds) = row.kind {
            assert!(
                bounds.windows(2).all(|pair| pair[0] < pair[1]),
                "{}",
                row.name
            );
        }
    }
}

#[test]
fn the_reference_documents_exactly_the_catalogue() {
    let path = "docs/reference/metrics.md";
    let page = read(path);
    let (list, _) = page.split_once("\n## Levels\n").unwrap();
    let mut lines = list.lines().filter(|line| line.starts_with("- `"));
    for row in metric_rows() {
        let labels = row
            .labels
            .iter()
            .map(|label| label.name)
            .collect::<Vec<_>>()
            .join(",");
        let labels = if labels.is_empty() {
            labels
        } else {
            format!("{{{labels}}}")
        };
        let entry = format!(
            "- `{}{labels}` ({}): {}",
            row.name,
            row.kind.as_str(),
            row.help
        );
        assert_eq!(lines.next(), Some(entry.as_str()), "{path}");
    }
    assert_eq!(
        lines.next(),
        None,
        "{path} lists a metric that does not exist"
    );
}

/// Returns the documented limits for the number of time series, by the labels whose values depend on the
/// fleet. For example, `·M·B` has the number of time series for each model and backend.
pub(crate) fn max_series() -> BTreeMap<String, usize> {
    let open = [
        ("gen_ai_request_model", "M"),
        ("backend", "B"),
        ("tier", "T"),
        ("error_type", "E"),
        ("http_response_status_code", "H"),
        ("gen_ai_operation_name", "O"),
        ("slo", "S"),
        ("tenant", "N"),
    ];
    // Together, these three labels identify a GPU, so their number of combinations is the number of GPUs of
    // all backends and not a product.
    let gpu = ["backend", "exporter", "gpu"];
    let mut most = BTreeMap::new();
    for row in metric_rows().filter(|row| exists_by_default(row)) {
        let has = |name: &str| row.labels.iter().any(|label| label.name == name);
        let is_open = |label: &MetricLabel| {
            open.iter().any(|(other, _)| *other == label.name) || gpu.contains(&label.name)
        };
        let closed = row.labels.iter().filter(|label| !is_open(label));
        let combinations: usize = closed
            .map(|label| label.seeds(&KnownLabelValues::default()).len())
            .product();
        let each = match row.kind {
            MetricKind::Counter | MetricKind::Gauge => 1,
            // A histogram has three more time series: the bucket `+Inf`, the sum and the count.
            MetricKind::Histogram(bounds) => bounds.len() + 3,
        };
        let factors = open
            .iter()
            .filter(|(label, _)| row.labels.iter().any(|other| other.name == *label));
        let factors = factors
            .map(|(_, name)| format!("·{name}"))
            .collect::<Vec<_>>()
            .concat();
        let factors = match (has("gpu"), has("exporter")) {
            (true, _) => "·G".to_owned(),
            (false, true) => "·X".to_owned(),
            (false, false) => factors,
        };
        *most.entry(factors).or_insert(0) += each * combinations;
    }
    most
}

#[test]
fn the_series_formula_follows_from_the_catalogue() {
    let most = max_series();
    let known = [
        "·M",
        "·M·T",
        "·M·O",
        "·M·H",
        "·M·B",
        "·M·B·T",
        "·M·B·T·E·O",
        "·M·S",
        "·B",
        "·T",
        "·S",
        "·N",
        "·G",
        "·X",
        "",
    ];
    assert!(
        most.keys().all(|factors| known.contains(&factors.as_str())),
        "{most:?}"
    );
    let terms = known.map(|factors| format!("{}{factors}", most[factors]));
    let formula = terms.join(" + ");
    let page = "docs/operate/metrics.md";
    let text = read(page);
    let mut lines = text.lines();
    let written = lines.find(|line| line.contains("·M·B·T·E·O")).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        std::fs::write(file, text.replace(written, &formula)).unwrap();
    } else {
        assert_eq!(written, formula, "UPDATE_GOLDEN=1 rewrites {page}");
    }
}

#[tokio::test]
async fn counters_and_gauges_exist_from_the_start() {
    let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
    let definition = "ttft < 1s for 99 %".parse().unwrap();
    let slos = vec![Objective {
        name: "all".into(),
        model: None,
        tier: None,
        definition,
    }];
    let access = crate::access::access(crate::access::tenant());
    let quality = QualitySettings {
        enabled: true,
        ..QualitySettings::default()
    };
    let gateway = start_with(
        &[nobody],
        Setup {
            access,
            slos,
            quality,
            ..Setup::default()
        },
    )
    .await;
    let page = gateway.admin("/metrics").await;
    assert!(page.contains("content-type: text/plain; version=0.0.4"));
    let samples = samples(&page);
    // These metrics may be missing at the start. Metrics of engines and GPUs exist only after a scrape.
    // Costs, KV events and the exchange between gateways exist only if they are configured. Histograms with
    // labels, counters of backends with another label, and verdicts exist only after their first value.
    let is_optional = |row: &&MetricDescriptor| {
        let is_cost = ["tokenweir_backend_gpus", "tokenweir_backend_price_per_hour"];
        let has = |name: &str| row.labels.iter().any(|label| label.name == name);
        let is_of_engine = row.name.starts_with("tokenweir_engine_");
        (is_of_engine && row.name != "tokenweir_engine_restarts_total")
            || ["tokenweir_backend_kv_event", "tokenweir_backend_kv_blocks", "tokenweir_jwt_", "tokenweir_limit_", "tokenweir_peer_"]
                .iter()
                .any(|start| row.name.starts_with(start))
            || is_cost.contains(&row.name)
            // This metric needs a backend with data-parallel ranks.
            || row.name == "tokenweir_backend_ranks"
            // Admission by live sessions is off by default.
            || ["tokenweir_live_sessions", "tokenweir_fitting_sessions", "tokenweir_held_requests"].contains(&row.name)
            // No model is split by default.
            || has("split_model")
            // These options are off by default.
            || CanaryRequests::ROWS.iter().chain(SleepMode::ROWS).any(|idle| idle.name == row.name)
            // The gateway shows this counter only if the metrics page of the engine has it.
            || row.name == "tokenweir_backend_preemptions_total"
            || has("exporter")
            || ["tokenweir_diagnosis_active", "tokenweir_verdict_info"].contains(&row.name)
            || (has("backend") && row.labels.len() > 1 && row.kind == MetricKind::Counter)
            || (matches!(row.kind, MetricKind::Histogram(_)) && !row.labels.is_empty())
    };
    for row in metric_rows().filter(|row| exists_by_default(row) && !is_optional(row)) {
        let is_of_row = |series: &str| {
            let name = series.split('{').next().unwrap();
            name.strip_prefix(row.name)
                .is_some_and(|rest| rest.is_empty() || rest == "_count")
        };
        assert!(
            samples.iter().any(|(series, _)| is_of_row(series)),
            "{} has no series",
            row.name
        );
    }
    assert!(page.contains("process_resident_memory_bytes"));
}

#[tokio::test]
async fn a_request_counts_once_in_each_metric() {
    let (fake, gateway) =
        gateway_answering(stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"])).await;
    gateway
        .post(CHAT, r#"{"model":"tiny","stream":true}"#)
        .await;
    gateway.record().await;
    let page = gateway.admin("/metrics").await;
    let model = "gen_ai_request_model=\"tiny\"";
    let exact = "source=\"exact\",tier=\"\"";
    let backend = format!("backend=\"{}\"", fake.addr);
    let expected = [
        (
            format!(
                "tokenweir_requests_total{{{model},operation=\"chat\",outcome=\"ok\",tier=\"\"}}"
            ),
            1.0,
        ),
        (
            format!("tokenweir_finish_reasons_total{{{model},reason=\"stop\"}}"),
            1.0,
        ),
        (
            format!("tokenweir_tokens_total{{{model},{exact},type=\"input\"}}"),
            9.0,
        ),
        (
            format!("tokenweir_tokens_total{{{model},{exact},type=\"output\"}}"),
            3.0,
        ),
        (
            format!("tokenweir_attempts_total{{{backend},result=\"ok\"}}"),
            1.0,
        ),
        (
            format!("tokenweir_backend_tokens_total{{{backend},type=\"input\"}}"),
            9.0,
        ),
        (
            format!("tokenweir_backend_tokens_total{{{backend},type=\"output\"}}"),
            3.0,
        ),
        (
            format!("tokenweir_inter_chunk_latency_seconds_count{{{backend},{model}}}"),
            1.0,
        ),
        (
            format!(
                "gen_ai_server_time_to_first_token_seconds_count{{{backend},{model},tier=\"\"}}"
            ),
            1.0,
        ),
        (
            format!("tokenweir_backend_kv_usage_ratio{{{backend}}}"),
            0.25,
        ),
        (
            format!("tokenweir_backend_requests_in_flight{{{backend}}}"),
            0.0,
        ),
        ("tokenweir_requests_in_flight".into(), 0.0),
        (
            "tokenweir_label_overflow_total{label=\"gen_ai_request_model\"}".into(),
            0.0,
        ),
    ];
    for (series, expected) in expected {
        assert_value(&page, &series, expected);
    }
}

#[tokio::test]
async fn requests_without_text_have_their_operation() {
    let (_fake, gateway) = gateway_answering(json("200 OK", r#"{"count":1,"tokens":[1]}"#)).await;
    for path in [CHAT, "/tokenize", "/tokenize", "/v1/embeddings"] {
        gateway.post(path, r#"{"model":"tiny"}"#).await;
        gateway.record().await;
    }
    let page = gateway.admin("/metrics").await;
    for (operation, expected) in [
        ("chat", 1.0),
        ("generate_content", 2.0),
        ("embeddings", 1.0),
    ] {
        let operation_label = format!("gen_ai_operation_name=\"{operation}\"");
        let labels = [&*operation_label, "gen_ai_request_model=\"tiny\""];
        let count = sum(
            &page,
            "gen_ai_server_request_duration_seconds_count",
            &labels,
        );
        assert!((count - expected).abs() < 1e-9, "{operation}: {count}");
    }
}
