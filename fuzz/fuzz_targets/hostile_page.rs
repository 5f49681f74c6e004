//! Fuzz target of the metrics pages of a backend. For any sequence of pages of one backend, the gateway
//! routes requests and renders its status and its own metrics page. It must not panic, and no counter may be
//! NaN.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use tokenweir::admin;
use tokenweir_engine::address::BackendAddress;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_gateway::backend::pool::{BackendPool, BackendRequirements};
use tokenweir_gateway::backend::{Backend, PoolSettings};
use tokenweir_gateway::status::StatusSnapshot;
use tokenweir_gateway::telemetry::metrics_registry::{
    BucketOverrides, ExpositionFormat, Prometheus,
};
use tokenweir_net::supervise::BackgroundTask;
use tokenweir_protocol::clock;
use tokenweir_routing::PromptFingerprint;

fuzz_target!(|pages: &[u8]| {
    let backends = ["http://127.0.0.1:9", "http://127.0.0.1:10"].map(|url| {
        let address = BackendAddress::parse(url).expect("a valid address");
        Backend::new(address.default_id(), address, None)
    });
    let pool = BackendPool::with_settings(backends.into(), &PoolSettings::default());
    pool.backends().iter().for_each(|backend| backend.mark_up());
    let bad = pool.backends()[0].clone();
    for (page, number) in pages.split(|byte| *byte == 0).zip(0_u64..) {
        let load = EngineLoad::read(page);
        bad.record_load(&load, &bad.load.estimator.local_load(), clock::now());
        let prompt = Arc::new(PromptFingerprint {
            bytes: 700 * number,
            ..Default::default()
        });
        let requirements = BackendRequirements {
            is_stream: number % 2 == 0,
            ..BackendRequirements::none(&prompt, number)
        };
        let awake = load.is_asleep() != Some(true);
        let leased = pool.lease(requirements, &[], clock::now());
        let (lease, _) = leased.expect("the second backend is sound");
        if awake {
            lease.backend_feedback().on_first_output(clock::now());
        }
    }
    let statuses = pool
        .backends()
        .iter()
        .map(|it| admin::backend_status(it, clock::now()))
        .collect();
    let status = StatusSnapshot {
        backends: statuses,
        ..StatusSnapshot::default()
    };
    serde_json::to_string(&status).expect("JSON");
    let metrics = Prometheus::new(BucketOverrides::default(), Vec::new());
    let page = metrics.page(&status, ExpositionFormat::OpenMetrics);
    for line in page
        .lines()
        .filter(|line| line.contains("_total") && !line.starts_with('#'))
    {
        assert!(!line.ends_with("NaN"), "{line}");
    }
    assert_eq!(BackgroundTask::ROUTING.panics(), 0, "a panic was caught");
});
