//! The integration tests, in one program so that they link once.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::disallowed_methods, reason = "tests may look at the real clock")]

mod access;
mod admission;
mod architecture;
mod bombs;
mod canary;
mod capture;
mod cardinality;
mod chaos;
mod clients;
mod collectors;
mod config;
mod endings;
mod exemplars;
mod explain;
mod failover;
mod faults;
mod generated;
mod http2;
mod leaving;
mod metrics;
mod models;
mod mutations;
mod operations;
mod pages;
mod proxy;
mod push;
mod replay;
mod restart;
mod scraping;
mod servers;
mod shapes;
mod simulated;
mod smuggling;
mod stalls;
mod streams;
mod tls;
mod traces;
mod usage;

mod support {
    pub(crate) mod certificates;
    pub(crate) mod facts;
    pub(crate) mod fake;
    pub(crate) mod fleet;
    pub(crate) mod gateway;
    pub(crate) mod http2;
    pub(crate) mod imp;
    pub(crate) mod mortal;
    pub(crate) mod process;
    pub(crate) mod promql;
    pub(crate) mod raw_http2;
    pub(crate) mod recording;
    pub(crate) mod strict;
}
