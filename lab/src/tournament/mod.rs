//! `tokenweir-lab tournament`: simulates routing policies in generated setups, each a combination of traffic,
//! fleet and load.

pub(crate) mod args;
pub(crate) mod run;
