//! The load generator: what is sent and when is a plan made before, what came of it is measured from
//! when each request was intended. A server that is slow cannot slow down what it is measured with.
//!
//! All but [`send`] is pure: times and randomness are arguments.

pub mod compare;
pub mod gateway;
pub mod histogram;
mod html;
pub mod measure;
pub mod plan;
mod plot;
pub mod report;
pub mod samples;
pub mod scenario;
pub mod send;
pub mod tally;
mod text;
