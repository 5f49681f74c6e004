//! The integration tests. They are one program, because linking many programs takes long.

#![cfg(feature = "tools")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
#![expect(clippy::disallowed_methods, reason = "tests may use the real clock")]

#[macro_use]
#[path = "support/waiting.rs"]
mod waiting;

/// Declares a file of tests in the folder of an option.
macro_rules! tests_of_option {
    ($name:ident, $path:literal) => {
        #[path = $path]
        mod $name;
    };
}

tests_of_option!(canary, "../../extras/canary/suite_tests.rs");
tests_of_option!(sleep, "../../extras/sleep/suite_tests.rs");

mod abusive_requests;
mod access;
mod admission;
mod answers;
mod architecture;
mod awaited_backends;
mod backend_crashes;
mod bodies;
mod capabilities;
mod cardinality;
mod chaos;
mod client_disconnects;
mod collector_tls;
mod config;
mod configured_routes;
mod continuation;
mod continuous_usage;
mod data_parallel;
mod diagnose;
mod doctor;
mod documentation;
mod engine_metrics;
mod engine_progress;
mod exemplars;
mod failover;
mod file_descriptors;
mod fleet_faults;
mod generated_streams;
mod gpus;
mod hostile_pages;
mod http2_client;
mod identities;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod kv_events;
mod live_view;
mod lost_backends;
mod metrics;
mod metrics_levels;
mod metrics_pages;
mod model_labels;
mod model_split;
mod models;
mod mutated_requests;
mod networks;
mod operate;
mod operations;
mod own_cost;
mod packages;
mod paths;
mod peer_exchange;
mod prefill_legs;
mod proxy;
mod quality;
mod readiness;
mod recorded_streams;
mod refusals;
mod request_metrics;
mod request_parsing;
mod response_parsing;
mod response_shapes;
mod restart;
mod resume;
mod retry_safety;
mod routing_decisions;
mod routing_headers;
mod scaling;
mod scraping;
mod secret_leaks;
mod server_dialects;
mod sessions;
mod shared_limits;
mod simulated_backends;
mod slow_clients;
mod smuggling;
mod stalls;
mod stored_responses;
mod stuck_engines;
mod terminations;
mod tls;
mod top;
mod trace_capture;
mod unknown_output;
mod unread_requests;
mod upgrade;
mod usage_injection;
mod usage_log;
mod webhook;

mod support {
    pub(crate) mod certificates;
    pub(crate) mod chunked_body;
    pub(crate) mod collector;
    pub(crate) mod corrupted_bytes;
    pub(crate) mod crashable_backend;
    pub(crate) mod http2_client;
    pub(crate) mod import_graph;
    #[cfg(feature = "kubernetes")]
    pub(crate) mod kubernetes_api_server;
    pub(crate) mod process;
    pub(crate) mod promql;
    pub(crate) mod raw_http2;
    pub(crate) mod record_facts;
    pub(crate) mod recording;
    pub(crate) mod request_reader;
    pub(crate) mod scripted_backend;
    pub(crate) mod simulated_fleet;
    pub(crate) mod strict;
    pub(crate) mod tcp_server;
    pub(crate) mod test_gateway;
}
