//! Protocol and decision code of tokenweir without I/O.
//!
//! No module opens a socket, reads a file or draws a random number: bytes and random numbers are
//! arguments. Only [`clock`] reads clocks. Most modules take the time as an argument;
//! [`batch_queue`] and [`observe`] call [`clock`].
//!
//! Modules are declared in layers. A module imports only from its own layer and from layers above
//! it in this file. The test `architecture` of the root package enforces an order of layers.

// Clocks, encodings, histograms, limits and units.
pub mod batch_queue;
pub mod clock;
pub mod histogram;
pub mod json;
pub mod limits;
pub mod metric_kind;
pub mod sse;
pub mod units;

// Headers and trace identities.
pub mod headers;
pub mod trace_context;

// HTTP/1.1 and the shapes of the OpenAI API.
pub mod http1;
pub mod openai;

// Prefill legs, and continuation of streams at another backend.
pub mod continuation;
pub mod prefill_leg;

// Routing policies and circuit breakers.
pub mod resilience;
pub mod routing;

// The record of a request.
pub mod record;

// Backends: addresses, metric pages, model lists.
pub mod address;
pub mod dialect;
pub mod engine_metrics;
pub mod gpu;
pub mod model;

// Service level objectives, and errors of the gateway.
pub mod error;
pub mod slo;

// Authentication, limits, and the admission queue.
pub mod access;
pub mod admission;

// Runs that clients can return to.
pub mod resume;

// Observation of streams.
pub mod observe;
