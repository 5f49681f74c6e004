//! `tokenweir diagnose`: reports the conditions of backends under load.

pub(crate) mod args;
mod report;
pub(crate) mod run;
