//! A hash of the values on a metrics page that change only when the engine computes.

use super::metric_sample::lines;
use memchr::memmem;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Prefixes of the names of metrics of the process and its web server, which change even while the engine
/// computes nothing.
const PROCESS_PREFIXES: [&[u8]; 6] = [
    b"process_",
    b"python_",
    b"http_",
    b"go_",
    b"promhttp_",
    b"scrape_",
];
/// Parts of the names of metrics that change when requests arrive, or when clients disconnect.
const ARRIVAL_PARTS: [&[u8]; 4] = [b"request", b"reqs", b"queue", b"abort"];
/// Part of the names of counters of finished requests. They count as signs of work, because only the engine
/// increments them.
const FINISHED_PART: &[u8] = b"success";

/// A hash of the lines of a metrics page that change only when the engine computes. Lines of metrics that are
/// known to change at other times are ignored. An unknown metric counts, so its change is a sign of work.
pub fn hash_engine_values(page: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    lines(page)
        .filter(|line| shows_work(line))
        .for_each(|line| line.hash(&mut hasher));
    hasher.finish()
}

fn shows_work(line: &[u8]) -> bool {
    let end = line
        .iter()
        .position(|byte| matches!(byte, b'{' | b' '))
        .unwrap_or(line.len());
    let name = &line[..end];
    let has = |text: &[u8], part: &[u8]| memmem::find(text, part).is_some();
    let counts_arrivals = ARRIVAL_PARTS.iter().any(|part| has(name, part));
    let is_of_process = PROCESS_PREFIXES
        .iter()
        .any(|prefix| name.starts_with(prefix));
    !line.starts_with(b"#")
        && !is_of_process
        && (!counts_arrivals || has(name, FINISHED_PART) && !has(line, b"abort"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_changes_do_not_change_the_hash() {
        for (page, later, shows_work) in [
            (
                "vllm:generation_tokens_total 7",
                "vllm:generation_tokens_total 8",
                true,
            ),
            (
                "vllm:kv_cache_usage_perc 0.10",
                "vllm:kv_cache_usage_perc 0.11",
                true,
            ),
            (
                "vllm:new_total{a=\"b\"} 1",
                "vllm:new_total{a=\"b\"} 2",
                true,
            ),
            ("steps 1", "steps 2", true),
            (
                "vllm:request_success_total 1",
                "vllm:request_success_total 2",
                true,
            ),
            (
                "request_success{r=\"abort\"} 1",
                "request_success{r=\"abort\"} 2",
                false,
            ),
            (
                "vllm:num_requests_waiting 1",
                "vllm:num_requests_waiting 5",
                false,
            ),
            ("tgi_request_count 1", "tgi_request_count 2", false),
            (
                "process_cpu_seconds_total 1",
                "process_cpu_seconds_total 2",
                false,
            ),
            (
                "http_requests_total{handler=\"/metrics\"} 1",
                "http_requests_total{} 2",
                false,
            ),
            ("# HELP a 1", "# HELP a 2", false),
        ] {
            let hash = |page: &str| hash_engine_values(format!("{page}\nconstant 1\n").as_bytes());
            assert_eq!(hash(page) != hash(later), shows_work, "{later}");
        }
    }
}
