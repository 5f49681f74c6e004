//! Tests that run `tokenweir-lab` as a program, with gateways, simulated backends and scripted servers. The
//! gateway's own test suite has these servers.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
#![expect(clippy::disallowed_methods, reason = "tests may use the real clock")]

#[macro_use]
#[path = "../../../tests/suite/support/waiting.rs"]
mod waiting;

mod bench;
mod program;
mod replay;
mod tune;

#[expect(dead_code, reason = "the suite of the gateway uses the rest")]
mod support;
