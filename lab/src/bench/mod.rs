//! `tokenweir-lab bench`: load-tests a server.

pub(crate) mod args;
mod driver;
pub(crate) mod run;
mod setup;
