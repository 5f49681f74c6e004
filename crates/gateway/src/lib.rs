//! The path of a request through the gateway: listeners, proxy, backends, and the sinks that the
//! record of each request reaches.
//!
//! The modules are declared in layers. A module uses only modules of its own layer and of earlier
//! layers; a test enforces this. The protocol, the engines, routing and the
//! record of a request are crates without I/O: bytes, time and randomness are arguments.
//!
//! ```text
//! client ─► server ─► proxy::handle_request                Exchange ────────┐ one per request
//!             │         ├ openai::route    API route: forwarded or local    │
//!             │         ├ access           API key, tenant, limits          │
//!             │         ├ request body     model and options; bytes unchanged
//!             │         ├ admission        queue while no backend has capacity
//!             │         ├ pool             policy picks a backend: lease    │
//!             │         ├ HttpClient       send; retry or failover          │
//!             │         └ response body    backend body, exchange, lease ◄──┘
//!             │                each chunk is inspected and forwarded unchanged
//!             │                (a usage event that the gateway requested is removed)
//!             │                at its end ─► RequestRecord, exactly once
//!             │                              ├► metrics ├► spans ├► access log
//!             │                              ├► decision log
//!             │                              └► trace capture, without texts
//!           admin ◄── gauges and decisions, read on request
//! health checks ─► /health, /metrics, /v1/models of each backend ─► backend state
//! ```

// Layer 1: what operators see of each part: its status and its metrics.
pub mod metric;
pub mod status;

// Layer 2: backends and the pool.
pub mod backend;

// Layer 3: sinks of records.
pub mod telemetry;

// Layer 4: the path of a request.
pub mod local_routes;
pub mod proxy;

// Layer 5: the two listeners.
pub mod server;
