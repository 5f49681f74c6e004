//! Under which names a page of metrics tells the signals that the gateway reads: found by leaving
//! metrics out, and looking what is no longer told.

use std::collections::BTreeMap;
use tokenweir_core::dialect::Load;
use tokenweir_core::signals::SIGNALS;

/// A signal, and the names of metrics.
pub type Named = (&'static str, Vec<String>);

/// Metrics by their names.
type Metrics<'a> = BTreeMap<&'a [u8], Vec<u8>>;

/// Each signal, and the metrics by which a page tells it; none, if it does not.
pub fn names(page: &[u8]) -> Vec<Named> {
    let metrics = read_of(page);
    let each = SIGNALS.iter().map(|signal| {
        let is_told = |kept: &[&[u8]]| {
            let lines = kept.iter().filter_map(|name| metrics.get(name));
            signal.is_told(&Load::read(&lines.flatten().copied().collect::<Vec<u8>>()))
        };
        let mut kept: Vec<&[u8]> = metrics.keys().copied().collect();
        if !is_told(&kept) {
            return (signal.name, Vec::new());
        }
        // What can be left out is not its name; of two that say the same, one stays.
        for name in metrics.keys() {
            let fewer: Vec<&[u8]> = kept.iter().copied().filter(|it| it != name).collect();
            if is_told(&fewer) {
                kept = fewer;
            }
        }
        let text = |name: &&[u8]| String::from_utf8_lossy(name).into_owned();
        (signal.name, kept.iter().map(text).collect())
    });
    each.collect()
}

/// The metrics of a page of which anything is read, each with all its lines.
fn read_of(page: &[u8]) -> Metrics<'_> {
    let mut metrics = Metrics::new();
    for line in page.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#")) {
        let end = line.iter().position(|byte| matches!(byte, b'{' | b' ' | b'\t'));
        let Some(name) = end.map(|end| &line[..end]) else { continue };
        let lines = metrics.entry(name).or_default();
        lines.extend_from_slice(line);
        lines.push(b'\n');
    }
    // What kind of server it is does not count.
    let read = |lines: &[u8]| Load { server: None, ..Load::read(lines) };
    metrics.retain(|_, lines| read(lines) != Load::default());
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(page: &str, signal: &str) -> Vec<String> {
        names(page.as_bytes()).into_iter().find(|(name, _)| *name == signal).unwrap().1
    }

    #[test]
    fn a_signal_has_the_names_that_the_page_has_for_it() {
        let page = include_str!("../../../tests/wire/metrics/python-metrics-idle.http");
        assert_eq!(of(page, "kv_usage"), ["vllm:kv_cache_usage_perc"]);
        assert_eq!(of(page, "kv_capacity"), ["vllm:cache_config_info"]);
        let queue = ["vllm:num_requests_running", "vllm:num_requests_waiting"];
        assert_eq!(of(page, "queue"), queue);
        assert_eq!(of(page, "lora"), [""; 0]);
        let before = include_str!("../../../tests/pages/vllm_before_0_9.txt");
        assert_eq!(of(before, "kv_usage"), ["vllm:gpu_cache_usage_perc"]);
        let llama = include_str!("../../../tests/pages/llama_cpp.txt");
        assert_eq!(of(llama, "queue").len(), 2);
    }

    #[test]
    fn of_two_names_for_one_number_one_is_told() {
        let page = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n\
                    vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.5\n";
        assert_eq!(of(page, "kv_usage").len(), 1);
    }
}
