//! `tokenweir replay`: runs a trace of traffic against routing policies, or against a live server.

pub(crate) mod args;
mod live;
pub(crate) mod run;
