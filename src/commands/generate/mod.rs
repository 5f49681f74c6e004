//! `tokenweir generate`: prints the files that are installed around the gateway.

pub(crate) mod args;
pub mod run;
pub(crate) mod shell;
