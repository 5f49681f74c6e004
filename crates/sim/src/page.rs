//! The `/metrics` page, in the Prometheus text format of vLLM 0.32: the `vllm:` families that say
//! something about load, with their names, help texts and labels. As from vLLM with several API
//! servers, there are no `_created` and no process series.

use std::fmt::Write;

use super::engine::{Load, Spec};
use super::telemetry::{Histogram, Telemetry};

/// Which vLLM's names the page uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Dialect {
    /// Since 0.12: `kv_cache_usage_perc`.
    #[default]
    Current,
    /// Until 0.9.1: `gpu_cache_usage_perc`.
    V0,
}

/// What the page tells.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// The first served model name.
    pub model: &'a str,
    /// The size of the engine.
    pub spec: &'a Spec,
    /// Its gauges and counters.
    pub load: &'a Load,
    /// Its histograms.
    pub telemetry: &'a Telemetry,
}

type Value = fn(&Scene<'_>) -> f64;

/// A gauge or a counter.
struct Family {
    name: &'static str,
    /// The name in [`Dialect::V0`], if it had another one.
    old_name: Option<&'static str>,
    help: &'static str,
    samples: &'static [(Label, Value)],
}

/// The label of a sample beside `engine` and `model_name`, and on which side of the latter it is.
enum Label {
    None,
    Before(&'static str),
    After(&'static str),
}

const fn family(
    name: &'static str,
    help: &'static str,
    samples: &'static [(Label, Value)],
) -> Family {
    Family { name, old_name: None, help, samples }
}

impl Family {
    const fn formerly(self, old_name: &'static str) -> Self {
        Self { old_name: Some(old_name), ..self }
    }

    fn name(&self, dialect: Dialect) -> &'static str {
        self.old_name.filter(|_| dialect == Dialect::V0).unwrap_or(self.name)
    }

    fn kind(&self) -> &'static str {
        if self.name.ends_with("_total") { "counter" } else { "gauge" }
    }
}

const ZERO: Value = |_| 0.0;

const FAMILIES: &[Family] = &[
    family(
        "num_requests_running",
        "Number of requests in model execution batches.",
        &[(Label::None, |scene| scene.load.running as f64)],
    ),
    family(
        "num_requests_waiting",
        "Number of requests waiting to be processed.",
        &[(Label::None, |scene| scene.load.waiting as f64)],
    ),
    family(
        "num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for \
         scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, \
         KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.",
        &[
            (Label::After(r#"reason="capacity""#), |scene| scene.load.waiting as f64),
            (Label::After(r#"reason="deferred""#), ZERO),
        ],
    ),
    family(
        "engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; \
         weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        &[
            (Label::After(r#"sleep_state="awake""#), |_| 1.0),
            (Label::After(r#"sleep_state="weights_offloaded""#), ZERO),
            (Label::After(r#"sleep_state="discard_all""#), ZERO),
        ],
    ),
    family(
        "kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        &[(Label::None, |scene| scene.load.kv_usage)],
    )
    .formerly("gpu_cache_usage_perc"),
    family(
        "prefix_cache_queries_total",
        "Prefix cache queries, in terms of number of queried tokens.",
        &[(Label::None, |scene| scene.load.prefix_queries as f64)],
    )
    .formerly("gpu_prefix_cache_queries_total"),
    family(
        "prefix_cache_hits_total",
        "Prefix cache hits, in terms of number of cached tokens.",
        &[(Label::None, |scene| scene.load.prefix_hits as f64)],
    )
    .formerly("gpu_prefix_cache_hits_total"),
    family(
        "num_preemptions_total",
        "Cumulative number of preemption from the engine.",
        &[(Label::None, |scene| scene.load.preemptions as f64)],
    ),
    family(
        "prompt_tokens_total",
        "Number of prefill tokens processed.",
        &[(Label::None, |scene| scene.load.prompt_tokens as f64)],
    ),
    family(
        "generation_tokens_total",
        "Number of generation tokens processed.",
        &[(Label::None, |scene| scene.load.generation_tokens as f64)],
    ),
    family(
        "request_success_total",
        "Count of successfully processed requests.",
        &[
            (Label::Before(r#"finished_reason="stop""#), |scene| scene.telemetry.stopped as f64),
            (Label::Before(r#"finished_reason="length""#), |scene| scene.telemetry.cut as f64),
            (Label::Before(r#"finished_reason="abort""#), ZERO),
            (Label::Before(r#"finished_reason="error""#), ZERO),
            (Label::Before(r#"finished_reason="repetition""#), ZERO),
        ],
    ),
];

/// Name, name in [`Dialect::V0`], what the histogram is of, and where it is.
type HistogramFamily = (&'static str, &'static str, &'static str, fn(&Telemetry) -> &Histogram);

#[rustfmt::skip] // a table
const HISTOGRAMS: &[HistogramFamily] = &[
    ("time_to_first_token", "time_to_first_token", "time to first token in seconds", |t| &t.time_to_first_token),
    ("inter_token_latency", "time_per_output_token", "inter-token latency in seconds", |t| &t.inter_token_latency),
    ("e2e_request_latency", "e2e_request_latency", "e2e request latency in seconds", |t| &t.e2e_request_latency),
    ("request_queue_time", "request_queue_time", "time spent in WAITING phase for request", |t| &t.request_queue_time),
    ("request_inference_time", "request_inference_time", "time spent in RUNNING phase for request", |t| &t.request_inference_time),
    ("request_prefill_time", "request_prefill_time", "time spent in PREFILL phase for request", |t| &t.request_prefill_time),
    ("request_decode_time", "request_decode_time", "time spent in DECODE phase for request", |t| &t.request_decode_time),
];

/// Renders the page. Writing to a `String` cannot fail, so its results are not looked at.
pub fn render(scene: &Scene<'_>, dialect: Dialect) -> String {
    let mut page = String::with_capacity(16 * 1024);
    let model = scene.model.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
    for family in FAMILIES {
        let name = family.name(dialect);
        head(&mut page, name, family.kind(), family.help);
        for (label, value) in family.samples {
            let (before, after) = match label {
                Label::None => (String::new(), String::new()),
                Label::Before(label) => (format!("{label},"), String::new()),
                Label::After(label) => (String::new(), format!(",{label}")),
            };
            let labels = format!(r#"engine="0",{before}model_name="{model}"{after}"#);
            sample(&mut page, name, &labels, value(scene));
        }
    }
    for (name, old_name, of_what, source) in HISTOGRAMS {
        let name = if dialect == Dialect::V0 { old_name } else { name };
        let (name, help) = (format!("{name}_seconds"), format!("Histogram of {of_what}."));
        histogram(&mut page, &name, &help, &model, source(scene.telemetry));
    }
    head(&mut page, "cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    sample(&mut page, "cache_config_info", &cache_config(scene.spec), 1.0);
    page
}

fn head(page: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(page, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
}

fn sample(page: &mut String, name: &str, labels: &str, value: f64) {
    let _ = writeln!(page, "vllm:{name}{{{labels}}} {}", number(value));
}

fn histogram(page: &mut String, name: &str, help: &str, model: &str, histogram: &Histogram) {
    head(page, name, "histogram", help);
    let bucket = format!("{name}_bucket");
    for (bound, count) in histogram.buckets() {
        let labels = format!(r#"engine="0",le="{}",model_name="{model}""#, number(bound));
        sample(page, &bucket, &labels, count as f64);
    }
    let labels = format!(r#"engine="0",model_name="{model}""#);
    sample(page, &format!("{name}_count"), &labels, histogram.count() as f64);
    sample(page, &format!("{name}_sum"), &labels, histogram.sum());
}

fn cache_config(spec: &Spec) -> String {
    let Spec { block_size, blocks, .. } = spec;
    let tokens = spec.capacity();
    format!(
        r#"block_size="{block_size}",cache_dtype="auto",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.92",kv_cache_size_tokens="{tokens}",num_cpu_blocks="None",num_gpu_blocks="{blocks}",num_gpu_blocks_override="{blocks}",prefix_caching_hash_algo="sha256",sliding_window="None""#
    )
}

/// A number as Python's client writes it: with an exponent from a million on.
fn number(value: f64) -> String {
    if value.is_infinite() {
        return "+Inf".to_owned();
    }
    let text = format!("{value:?}");
    match text.split_once('.') {
        Some((whole, fraction)) if value > 0.0 && whole.len() > 6 => {
            let (first, rest) = whole.split_at(1);
            let mantissa = format!("{first}.{rest}{fraction}");
            let mantissa = mantissa.trim_end_matches(['0', '.']);
            format!("{mantissa}e+{:02}", rest.len())
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(dialect: Dialect) -> String {
        let load = Load { running: 3, kv_usage: 0.25, prompt_tokens: 1_500_000, ..Load::default() };
        let (spec, telemetry) = (Spec::default(), Telemetry::default());
        let scene = Scene { model: "tiny", spec: &spec, load: &load, telemetry: &telemetry };
        render(&scene, dialect)
    }

    #[test]
    fn samples_read_as_recorded() {
        let page = page(Dialect::Current);
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
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn the_old_dialect_has_the_old_names_and_not_the_new() {
        let page = page(Dialect::V0);
        assert!(page.contains("vllm:gpu_cache_usage_perc{"));
        assert!(page.contains("vllm:time_per_output_token_seconds_bucket{"));
        assert!(!page.contains("kv_cache_usage_perc"));
    }

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        let written = [0.0, 0.25, 123_456.0, 4_524_052_480.0, 1e9, f64::INFINITY].map(number);
        assert_eq!(written, ["0.0", "0.25", "123456.0", "4.52405248e+09", "1e+09", "+Inf"]);
    }
}
