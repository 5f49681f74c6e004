//! Metrics pages of one backend that contain arbitrary numbers. They make no request fail, and the gateway
//! can still render its status and its own metrics page.

use std::sync::Arc;
use tokenweir::admin;
use tokenweir_engine::address::BackendAddress;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_gateway::backend::pool::{BackendPool, BackendRequirements};
use tokenweir_gateway::backend::{Backend, Lease, PoolSettings};
use tokenweir_gateway::status::StatusSnapshot;
use tokenweir_gateway::telemetry::metrics_registry::{
    BucketOverrides, ExpositionFormat, Prometheus,
};
use tokenweir_protocol::clock;
use tokenweir_routing::{Policy, PolicyKind, PromptFingerprint};

/// Number of metrics pages for each routing policy. The environment variable `HOSTILE_PAGES` overrides it.
const PAGES: usize = 400;
const NAMES: [&str; 26] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_queue_time_seconds_count",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_prefill_time_seconds_count",
    "vllm:cache_config_info{block_size=\"V\",num_gpu_blocks=\"W\"}",
    "vllm:lora_requests_info{max_lora=\"V\",running_lora_adapters=\"a,b\"}",
    "vllm:engine_sleep_state{sleep_state=\"awake\"}",
    "process_start_time_seconds",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:token_usage",
    "sglang:max_total_num_tokens",
    "tgi_batch_current_size",
    "tgi_queue_size",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
    "trtllm_kv_cache_utilization",
];
const VALUES: [&str; 24] = [
    "0",
    "1",
    "2",
    "7.5",
    "0.5",
    "1e-320",
    "64",
    "1000",
    "1e6",
    "1000001",
    "1e12",
    "1e15",
    "1e16",
    "9e307",
    "1e308",
    "-1",
    "-9e307",
    "NaN",
    "+Inf",
    "-Inf",
    "9007199254740993",
    "18446744073709551615",
    "",
    "x",
];

fn page(random: &mut fastrand::Rng) -> String {
    let value = |random: &mut fastrand::Rng| VALUES[random.usize(..VALUES.len())];
    let mut page = String::new();
    for _ in 0..random.usize(1..60) {
        let name = NAMES[random.usize(..NAMES.len())];
        page += &name.replace('V', value(random)).replace('W', value(random));
        page.extend([" ", value(random), "\n"]);
    }
    page
}

fn lease(pool: &BackendPool, random: &mut fastrand::Rng) -> Lease {
    let prompt = Arc::new(PromptFingerprint {
        bytes: random.u64(1..100_000),
        blocks: (0..random.usize(..8)).map(|block| block as u64).collect(),
        block_bytes: 512,
        ..PromptFingerprint::default()
    });
    let requirements = BackendRequirements {
        is_stream: random.bool(),
        session: random.bool().then(|| random.u64(..)),
        ..BackendRequirements::none(&prompt, random.u64(..))
    };
    pool.lease(requirements, &[], clock::now())
        .expect("a backend is up")
        .0
}

/// Renders the status and the metrics page of the gateway. Asserts that each value is a number and each counter
/// is finite.
fn read_pages(pool: &BackendPool, prometheus: &Prometheus) {
    let backends = pool.backends();
    let statuses = backends
        .iter()
        .map(|backend| admin::backend_status(backend, clock::now()));
    let status = StatusSnapshot {
        backends: statuses.collect(),
        ..StatusSnapshot::default()
    };
    serde_json::to_string(&status).unwrap();
    let page = prometheus.page(&status, ExpositionFormat::OpenMetrics);
    let page = String::from_utf8(page).unwrap();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        let is_counter = series
            .split('{')
            .next()
            .is_some_and(|name| name.ends_with("_total"));
        assert!(!is_counter || value.is_finite(), "{line}");
    }
}

#[test]
fn no_number_breaks_requests_or_pages() {
    let pages = std::env::var("HOSTILE_PAGES").map_or(PAGES, |count| count.parse().unwrap());
    for kind in PolicyKind::ALL {
        let mut random = fastrand::Rng::with_seed(kind as u64);
        let backends = ["http://127.0.0.1:9", "http://127.0.0.1:10"].map(|url| {
            let address = BackendAddress::parse(url).unwrap();
            Backend::new(address.default_id(), address, None)
        });
        let policy = Policy {
            kind,
            ..Policy::default()
        };
        let settings = PoolSettings {
            policy,
            ..PoolSettings::default()
        };
        let pool = BackendPool::with_settings(backends.into(), &settings);
        let prometheus = Prometheus::new(BucketOverrides::default(), Vec::new());
        pool.backends().iter().for_each(|backend| backend.mark_up());
        let bad = pool.backends()[0].clone();
        for number in 0..pages {
            let load = EngineLoad::read(page(&mut random).as_bytes());
            bad.record_load(&load, &bad.load.estimator.local_load(), clock::now());
            let leases = [lease(&pool, &mut random), lease(&pool, &mut random)];
            if random.bool() {
                for lease in &leases {
                    lease.backend_feedback().on_first_output(clock::now());
                }
            }
            if number % 200 == 0 {
                read_pages(&pool, &prometheus);
            }
        }
        read_pages(&pool, &prometheus);
        // After one valid metrics page, the backend must get requests again.
        let sound = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n\
                     vllm:kv_cache_usage_perc 0.1\n";
        let load = EngineLoad::read(sound.as_bytes());
        bad.record_load(&load, &bad.load.estimator.local_load(), clock::now());
        let prompt = Arc::default();
        let requirements = BackendRequirements {
            backend: Some(&bad.identity.id),
            ..BackendRequirements::none(&prompt, 0)
        };
        assert!(
            pool.lease(requirements, &[], clock::now()).is_ok(),
            "{}",
            kind.as_str()
        );
        assert!(
            admin::backend_status(&bad, clock::now())
                .learned
                .prefill_backlog_tokens
                < 1e9
        );
    }
}
