//! The integration tests, in one program so that they link once.

#![cfg(feature = "tools")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::disallowed_methods, reason = "tests may look at the real clock")]

mod access;
mod admission;
mod answers;
mod architecture;
mod bench;
mod bodies;
mod bombs;
mod canary;
mod capture;
mod cardinality;
mod chaos;
mod clients;
mod collectors;
mod config;
mod continuous_usage;
mod descriptors;
mod diagnose;
mod doctor;
mod documents;
mod endings;
mod exemplars;
mod explain;
mod failover;
mod faults;
mod frozen;
mod generated;
mod http2;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod labels;
mod leaving;
mod live;
mod metrics;
mod models;
mod mutations;
mod operations;
mod packages;
mod pages;
mod proxy;
mod push;
mod quality;
mod readiness;
mod replay;
mod replayed;
mod requests;
mod restart;
mod scraping;
mod servers;
mod shapes;
mod simulated;
mod smuggling;
mod stalls;
mod standstill;
mod streams;
mod tls;
mod top;
mod traces;
mod tune;
mod usage;

mod support {
    #[cfg(feature = "kubernetes")]
    pub(crate) mod api_server;
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
    pub(crate) mod spoilt;
    pub(crate) mod strict;
}
