//! `tokenweir demo`: simulated backends, a gateway and a light load in one process.

pub(crate) mod args;
mod fault;
mod load;
pub(crate) mod run;
