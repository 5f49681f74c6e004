//! Finds the names of the metrics from which the gateway reads each signal. A signal is one entry of
//! [`ENGINE_METRICS`], such as `kv_usage`. A metric belongs to a signal if the signal becomes unavailable
//! without the metric.

use std::collections::BTreeMap;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_engine::engine_metrics::ENGINE_METRICS;

/// The name of a signal, and the names of the metrics of this signal on one page.
pub type EngineMetricNames = (&'static str, Vec<String>);

/// The lines of each metric of a page, by the name of the metric.
type MetricLines<'a> = BTreeMap<&'a [u8], Vec<u8>>;

/// For each signal, the names of the metrics of the page from which the gateway reads it. Empty names: the page
/// lacks the signal.
pub fn names(page: &[u8]) -> Vec<EngineMetricNames> {
    let metrics = understood_metrics(page);
    let signals = ENGINE_METRICS.iter().map(|signal| {
        let is_available = |names: &[&[u8]]| {
            let lines = names.iter().filter_map(|name| metrics.get(name));
            (signal.is_available)(&EngineLoad::read(
                &lines.flatten().copied().collect::<Vec<u8>>(),
            ))
        };
        let mut needed: Vec<&[u8]> = metrics.keys().copied().collect();
        if !is_available(&needed) {
            return (signal.name, Vec::new());
        }
        // The loop removes each metric that the signal does not need. One of several equivalent metrics
        // remains.
        for name in metrics.keys() {
            let fewer: Vec<&[u8]> = needed
                .iter()
                .copied()
                .filter(|other| other != name)
                .collect();
            if is_available(&fewer) {
                needed = fewer;
            }
        }
        let to_text = |name: &&[u8]| String::from_utf8_lossy(name).into_owned();
        (signal.name, needed.iter().map(to_text).collect())
    });
    signals.collect()
}

/// The metrics of a page from which the gateway reads at least one value, each with all its lines.
fn understood_metrics(page: &[u8]) -> MetricLines<'_> {
    let mut metrics = MetricLines::new();
    for line in page
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.starts_with(b"#"))
    {
        let end = line
            .iter()
            .position(|byte| matches!(byte, b'{' | b' ' | b'\t'));
        let Some(name) = end.map(|end| &line[..end]) else {
            continue;
        };
        let lines = metrics.entry(name).or_default();
        lines.extend_from_slice(line);
        lines.push(b'\n');
    }
    // Any metric name reveals the kind of the server, so the field `server` does not show that a value was
    // read. It is ignored.
    let read_values = |lines: &[u8]| EngineLoad {
        server: None,
        ..EngineLoad::read(lines)
    };
    metrics.retain(|_, lines| read_values(lines) != EngineLoad::default());
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(page: &str, signal: &str) -> Vec<String> {
        names(page.as_bytes())
            .into_iter()
            .find(|(name, _)| *name == signal)
            .unwrap()
            .1
    }

    #[test]
    fn names_of_a_signal_are_on_the_page() {
        let page = include_str!("../../../tests/wire/metrics/python-metrics-idle.http");
        assert_eq!(names_of(page, "kv_usage"), ["vllm:kv_cache_usage_perc"]);
        assert_eq!(names_of(page, "kv_capacity"), ["vllm:cache_config_info"]);
        let queue = ["vllm:num_requests_running", "vllm:num_requests_waiting"];
        assert_eq!(names_of(page, "queue"), queue);
        assert_eq!(names_of(page, "lora"), [""; 0]);
        let before = include_str!("../../../tests/pages/vllm_before_0_9.txt");
        assert_eq!(names_of(before, "kv_usage"), ["vllm:gpu_cache_usage_perc"]);
        let llama = include_str!("../../../tests/pages/llama_cpp.txt");
        assert_eq!(names_of(llama, "queue").len(), 2);
    }

    #[test]
    fn two_metrics_of_one_signal_give_one_name() {
        let page = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n\
                    vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.5\n";
        assert_eq!(names_of(page, "kv_usage").len(), 1);
    }
}
