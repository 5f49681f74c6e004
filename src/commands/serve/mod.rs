//! `tokenweir serve`: the gateway.

pub mod args;
pub mod run;
