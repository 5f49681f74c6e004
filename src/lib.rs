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

// Floor 0: time, and the shapes of bytes.
pub mod clock;
pub mod gather;
pub mod json;
pub mod rate;
pub mod spread;
pub mod sse;
pub mod units;

pub mod trace_context;

// Floor 1: what the wire means.
pub mod headers;
pub mod openai;

pub mod http1;

// Floor 2: choosing, and what failures mean; what a request was, whether that was promised, and
// why it was refused; who may come in.
pub mod routing;

pub mod resilience;

pub mod record;

pub mod slo;

pub mod error;

pub mod access;

// Floor 3: waiting and watching, without I/O.
pub mod admission;
pub mod observe;

// Floor 4: background tasks that survive a panic; connections that nobody else reads; the replicas,
// and where they are found.
pub mod supervise;

pub mod tls;

pub mod backend;

pub mod discovery;

// What is the matter with the replicas.
pub mod diagnose;

// Floor 5: the record, told.
pub mod telemetry;

// Floor 6: the story of a request.
pub mod own;

pub mod proxy;

// Floor 7: what it is told to do.
pub mod config;

// Floor 8: what is installed around it; two ports.
pub mod operations;

pub mod admin;

pub mod server;

// Beside the house: simulated replicas to try it with, traces to try policies on, load to measure
// servers with, settings that follow from it, what is asked of replicas before they are trusted, and
// what is seen of a gateway in a terminal.
pub mod sim;

pub mod lab;

pub mod bench;

pub mod tune;

pub mod doctor;

pub mod top;

// The roof: commands.
pub mod cli;

pub mod app;
