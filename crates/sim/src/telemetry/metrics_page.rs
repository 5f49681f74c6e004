//! The `/metrics` page in the Prometheus text format of vLLM 0.32: the `vllm:` metrics about load, with their
//! names, help texts and labels. As in vLLM with several API servers, there are no `_created` series and no
//! process series.

use std::fmt::Write;

use super::engine_telemetry::{EngineHistogram, EngineTelemetry};
use crate::engine::{EngineSpec, SimulatedEngineLoad};

/// The data that the metrics page shows.
#[derive(Debug, Clone, Copy)]
pub struct MetricsSource<'a> {
    /// The first served model name.
    pub model: &'a str,
    /// The specification of the engine. `cache_config_info` shows its KV cache size.
    pub spec: &'a EngineSpec,
    /// Gauges and counters of the engine.
    pub load: &'a SimulatedEngineLoad,
    /// Histograms of the engine.
    pub telemetry: &'a EngineTelemetry,
}

type ReadValue = fn(&MetricsSource<'_>) -> f64;

/// A gauge or a counter: its name, its help text and its samples.
type VllmMetricFamily = (&'static str, &'static str, &'static [VllmSample]);

/// A sample: its labels before and after `model_name`, and the function that reads its value.
type VllmSample = (&'static str, &'static str, ReadValue);

const ZERO_VALUE: ReadValue = |_| 0.0;

const FAMILIES: &[VllmMetricFamily] = &[
    (
        "num_requests_running",
        "Number of requests in model execution batches.",
        &[("", "", |source| source.load.running as f64)],
    ),
    (
        "num_requests_waiting",
        "Number of requests waiting to be processed.",
        &[("", "", |source| source.load.waiting as f64)],
    ),
    (
        "num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for \
         scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, \
         KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.",
        &[
            ("", r#",reason="capacity""#, |source| {
                source.load.waiting as f64
            }),
            ("", r#",reason="deferred""#, ZERO_VALUE),
        ],
    ),
    (
        "engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; \
         weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        &[
            ("", r#",sleep_state="awake""#, |_| 1.0),
            ("", r#",sleep_state="weights_offloaded""#, ZERO_VALUE),
            ("", r#",sleep_state="discard_all""#, ZERO_VALUE),
        ],
    ),
    (
        "kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        &[("", "", |source| source.load.kv_usage)],
    ),
    (
        "prefix_cache_queries_total",
        "Prefix cache queries, in terms of number of queried tokens.",
        &[("", "", |source| source.load.prefix_queries as f64)],
    ),
    (
        "prefix_cache_hits_total",
        "Prefix cache hits, in terms of number of cached tokens.",
        &[("", "", |source| source.load.prefix_hits as f64)],
    ),
    (
        "num_preemptions_total",
        "Cumulative number of preemption from the engine.",
        &[("", "", |source| source.load.preemptions as f64)],
    ),
    (
        "prompt_tokens_total",
        "Number of prefill tokens processed.",
        &[("", "", |source| source.load.prompt_tokens as f64)],
    ),
    (
        "generation_tokens_total",
        "Number of generation tokens processed.",
        &[("", "", |source| source.load.generation_tokens as f64)],
    ),
    (
        "request_success_total",
        "Count of successfully processed requests.",
        &[
            (r#"finished_reason="stop","#, "", |source| {
                source.telemetry.stopped as f64
            }),
            (r#"finished_reason="length","#, "", |source| {
                source.telemetry.length_limited as f64
            }),
            (r#"finished_reason="abort","#, "", ZERO_VALUE),
            (r#"finished_reason="error","#, "", ZERO_VALUE),
            (r#"finished_reason="repetition","#, "", ZERO_VALUE),
        ],
    ),
];

/// Name, measured quantity (for the help text), and the function that returns the histogram.
type HistogramFamily = (
    &'static str,
    &'static str,
    fn(&EngineTelemetry) -> &EngineHistogram,
);

#[rustfmt::skip] // a table
const HISTOGRAMS: &[HistogramFamily] = &[
    ("time_to_first_token", "time to first token in seconds", |t| &t.time_to_first_token),
    ("inter_token_latency", "inter-token latency in seconds", |t| &t.inter_token_latency),
    ("e2e_request_latency", "e2e request latency in seconds", |t| &t.e2e_request_latency),
    ("request_queue_time", "time spent in WAITING phase for request", |t| &t.request_queue_time),
    ("request_inference_time", "time spent in RUNNING phase for request", |t| &t.request_inference_time),
    ("request_prefill_time", "time spent in PREFILL phase for request", |t| &t.request_prefill_time),
    ("request_decode_time", "time spent in DECODE phase for request", |t| &t.request_decode_time),
];

/// Renders the page. Writing to a `String` cannot fail, so the results of `writeln!` are ignored.
pub fn render(source: &MetricsSource<'_>) -> String {
    let mut page = String::with_capacity(16 * 1024);
    let model = source
        .model
        .replace('\\', r"\\")
        .replace('"', r#"\""#)
        .replace('\n', r"\n");
    for (name, help, samples) in FAMILIES {
        let kind = if name.ends_with("_total") {
            "counter"
        } else {
            "gauge"
        };
        write_header(&mut page, name, kind, help);
        for (before, after, value) in *samples {
            let labels = format!(r#"engine="0",{before}model_name="{model}"{after}"#);
            write_sample(&mut page, name, &labels, value(source));
        }
    }
    for (name, quantity, read_histogram) in HISTOGRAMS {
        let name = format!("{name}_seconds");
        let help = format!("Histogram of {quantity}.");
        write_histogram(
            &mut page,
            &name,
            &help,
            &model,
            read_histogram(source.telemetry),
        );
    }
    write_header(
        &mut page,
        "cache_config_info",
        "gauge",
        "Information of the LLMEngine CacheConfig",
    );
    write_sample(
        &mut page,
        "cache_config_info",
        &cache_config_labels(source.spec),
        1.0,
    );
    page
}

fn write_header(page: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(page, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
}

fn write_sample(page: &mut String, name: &str, labels: &str, value: f64) {
    let _ = writeln!(page, "vllm:{name}{{{labels}}} {}", format_number(value));
}

fn write_histogram(
    page: &mut String,
    name: &str,
    help: &str,
    model: &str,
    histogram: &EngineHistogram,
) {
    write_header(page, name, "histogram", help);
    let bucket = format!("{name}_bucket");
    let bounds = histogram.bounds().iter().copied().chain([f64::INFINITY]);
    let mut cumulative = 0_u64;
    for (bound, count) in bounds.zip(histogram.bucket_counts()) {
        cumulative += u64::from(*count);
        let labels = format!(
            r#"engine="0",le="{}",model_name="{model}""#,
            format_number(bound)
        );
        write_sample(page, &bucket, &labels, cumulative as f64);
    }
    let labels = format!(r#"engine="0",model_name="{model}""#);
    write_sample(page, &format!("{name}_count"), &labels, cumulative as f64);
    write_sample(page, &format!("{name}_sum"), &labels, histogram.sum());
}

fn cache_config_labels(spec: &EngineSpec) -> String {
    let EngineSpec {
        block_size, blocks, ..
    } = spec;
    let tokens = spec.capacity();
    format!(
        r#"block_size="{block_size}",cache_dtype="auto",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.92",kv_cache_size_tokens="{tokens}",num_cpu_blocks="None",num_gpu_blocks="{blocks}",num_gpu_blocks_override="{blocks}",prefix_caching_hash_algo="sha256",sliding_window="None""#
    )
}

/// Formats a number as the Prometheus client for Python does: with an exponent if it is at least
/// one million.
fn format_number(value: f64) -> String {
    if value.is_infinite() {
        return "+Inf".to_owned();
    }
    let text = format!("{value:?}");
    match text.split_once('.') {
        Some((integer, fraction)) if value > 0.0 && integer.len() > 6 => {
            let (first_digit, more_digits) = integer.split_at(1);
            let mantissa = format!("{first_digit}.{more_digits}{fraction}");
            let mantissa = mantissa.trim_end_matches(['0', '.']);
            format!("{mantissa}e+{:02}", more_digits.len())
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> String {
        let load = SimulatedEngineLoad {
            running: 3,
            kv_usage: 0.25,
            prompt_tokens: 1_500_000,
            ..SimulatedEngineLoad::default()
        };
        let mut telemetry = EngineTelemetry::default();
        for seconds in [0.01, 0.011, 90.0] {
            telemetry.inter_token_latency.record_n(seconds, 1);
        }
        let spec = EngineSpec::DEFAULT;
        let source = MetricsSource {
            model: "tiny",
            spec: &spec,
            load: &load,
            telemetry: &telemetry,
        };
        render(&source)
    }

    #[test]
    fn the_page_has_the_lines_of_vllm() {
        let page = page();
        for line in [
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            r#"vllm:num_requests_running{engine="0",model_name="tiny"} 3.0"#,
            r#"vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 0.0"#,
            r#"vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25"#,
            r#"vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1.5e+06"#,
            r#"vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 0.0"#,
            r#"vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="tiny"} 0.0"#,
            r#"vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 0.0"#,
            r#"vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 0.0"#,
            r#"vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="tiny"} 1.0"#,
            r#"vllm:inter_token_latency_seconds_bucket{engine="0",le="0.025",model_name="tiny"} 2.0"#,
            r#"vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 3.0"#,
            r#"vllm:inter_token_latency_seconds_count{engine="0",model_name="tiny"} 3.0"#,
        ] {
            assert!(
                page.lines().any(|found| found == line),
                "{line} is not in\n{page}"
            );
        }
    }

    #[test]
    fn numbers_are_formatted_as_by_python() {
        let written =
            [0.0, 0.25, 123_456.0, 4_524_052_480.0, 1e9, f64::INFINITY].map(format_number);
        assert_eq!(
            written,
            ["0.0", "0.25", "123456.0", "4.52405248e+09", "1e+09", "+Inf"]
        );
    }
}
