//! Fuzz target of the parser of metrics pages. For any page, the load that the gateway reads has finite
//! values in their valid ranges. Adding lines about other metrics to the page does not change it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenweir_engine::dialect::EngineLoad;

/// Lines that resemble those of engine metrics, but are not.
const OTHER_LINES: [&str; 7] = [
    "# HELP vllm:num_requests_waiting Number of requests waiting to be processed.",
    "# vllm:num_requests_waiting 7",
    "other_num_requests_waiting 7",
    r#"vllm:num_requests_waiting_by_reason{reason="vllm:num_requests_waiting 7\n"} 7"#,
    r#"vllm:prompt_tokens_total_bucket{le="1.0"} 7"#,
    "vllm:num_requests_running",
    "vllm:num_requests_running NaN",
];

fuzz_target!(|page: &[u8]| {
    let load = EngineLoad::read(page);
    let counts = [
        load.waiting,
        load.running,
        load.preemptions,
        load.prefix_queries,
        load.prefix_hits,
        load.prompt_tokens,
        load.generation_tokens,
        load.block_size,
        load.blocks,
        load.queue_seconds,
        load.queued,
        load.prefill_seconds,
        load.prefilled,
        load.first_token_seconds,
        load.first_tokens,
        load.gap_seconds,
        load.gaps,
        load.waiting_capacity,
        load.engines,
        load.kv_tokens,
        load.awake,
        load.started,
    ];
    assert!(
        counts
            .into_iter()
            .flatten()
            .all(|count| count.is_finite() && count >= 0.0)
    );
    let usages = [load.kv_usage, load.min_kv_usage];
    assert!(
        usages
            .into_iter()
            .flatten()
            .all(|usage| (0.0..=1.0).contains(&usage))
    );
    assert_ne!(load.capacity(), Some(0));
    let mut longer = Vec::new();
    for (line, other) in page
        .split(|byte| *byte == b'\n')
        .zip(OTHER_LINES.into_iter().cycle())
    {
        longer.extend_from_slice(&[line, b"\n", other.as_bytes(), b"\n"].concat());
    }
    // The name of the server software is not compared, because some of the added lines identify other
    // software.
    assert_eq!(
        EngineLoad {
            server: load.server,
            ..EngineLoad::read(&longer)
        },
        load
    );
});
