//! Protocol and decision code of tokenweir without I/O.
//!
//! No module here opens a socket, reads a file, reads a clock or draws a random number, except
//! [`clock`], which is the one place that reads the clock. Bytes, time and randomness are
//! arguments.
//!
//! Modules are declared in layers. A module imports only from layers above its own in this file;
//! the test `architecture` of the root package enforces the order.

// Time, encodings and measures.
pub mod batch_queue;
pub mod clock;
pub mod histogram;
pub mod json;
pub mod metric_kind;
pub mod rate_limiter;
pub mod sse;
pub mod units;

// Headers and trace identities.
pub mod headers;
pub mod trace_context;

// HTTP/1.1 and the shapes of the OpenAI API.
pub mod http1;
pub mod openai;

// Routing policies and circuit breakers.
pub mod resilience;
pub mod routing;

// The record of a request, and the address of a backend.
pub mod record;

// Backends: addresses, metric pages, model lists.
pub mod address;
pub mod dialect;
pub mod engine_metrics;
pub mod model;

// Service level objectives, and errors of the gateway.
pub mod error;
pub mod slo;

// Authentication, limits, and the admission queue.
pub mod access;
pub mod admission;

// Observation of streams.
pub mod observe;
