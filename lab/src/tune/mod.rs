//! `tokenweir-lab tune`: sizes the settings of vLLM.

pub(crate) mod args;
pub(crate) mod run;
