//! The integration tests, in one program so that they link once.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::disallowed_methods, reason = "tests may look at the real clock")]

mod architecture;
mod config;
mod metrics;
mod proxy;
mod simulated;
mod streams;

mod support {
    pub(crate) mod fake;
    pub(crate) mod gateway;
    pub(crate) mod recording;
}
