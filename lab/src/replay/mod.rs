//! `tokenweir-lab replay`: simulates routing policies on a traffic trace.

pub(crate) mod args;
pub(crate) mod requests;
pub(crate) mod run;
