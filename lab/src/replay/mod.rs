//! `tokenweir-lab replay`: simulates routing policies on a traffic trace, or sends it to a server.

pub(crate) mod args;
mod live;
pub(crate) mod requests;
pub(crate) mod run;
