//! `tokenweir doctor`: checks backends and a configuration.

pub(crate) mod args;
pub(crate) mod run;
