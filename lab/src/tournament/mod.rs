//! `tokenweir-lab tournament`: simulates routing policies in generated setups.

pub(crate) mod args;
pub(crate) mod run;
