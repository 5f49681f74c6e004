//! `tokenweir generate`: prints the files that a deployment of the gateway needs.

pub(crate) mod args;
pub mod run;
pub(crate) mod shell;
