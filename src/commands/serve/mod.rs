//! `tokenweir serve`: runs the gateway.

pub mod args;
pub mod run;
