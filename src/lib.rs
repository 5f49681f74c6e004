//! The gateway forwards OpenAI-style requests to vLLM replicas, chooses the replica whose KV cache
//! can take them, and measures every stream it carries.
//!
//! Read the modules in the order they are declared. Each floor uses only the floors before it; a
//! test keeps it so. Up to `observe` nothing does I/O, reads a clock or draws luck: bytes, time
//! and randomness are arguments.
//!
//! ```text
//! client ─► server ─► proxy::handle                        Exchange::open ──┐ one guard,
//!             │         ├ openai::route    is it inference?                 │ moved along
//!             │         ├ access           whose key is it, and may it take more?
//!             │         ├ openai::request  model, stream; the bytes stay    │
//!             │         ├ admission        waits while all are full         │
//!             │         ├ pool.lease       routing::Policy over a snapshot  │
//!             │         ├ client.send      ↺ another replica if none heard  │
//!             │         └ ObservedBody { replica's body, exchange, lease } ◄┘
//!             │                each frame: Observer; the frame passes untouched
//!             │                (one event may be taken out: the usage that we asked for)
//!             │                its end, however it comes ─► RequestRecord, once
//!             │                                             ├► prometheus ├► spans ├► access log
//!             │                                             ├► explanations
//!             │                                             └► capture, without text
//!           admin ◄── gauges and explanations, read when asked
//! watch ─► /health, /metrics, /v1/models of each replica ─► what the pool believes
//! ```

// Layer 1: backends and their discovery.
pub mod backend;
pub mod discovery;

// Layer 2: sinks of records.
pub mod telemetry;

// Layer 3: the path of a request.
pub mod own;
pub mod proxy;

// Layer 4: configuration.
pub mod config;

// Layer 5: the two listeners.
pub mod admin;
pub mod server;

// Layer 6: the composition root.
pub mod app;

// Layer 7: the command line.
pub mod cli;
pub mod commands;
