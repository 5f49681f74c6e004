//! `tokenweir top`: shows a running gateway in the terminal.

pub(crate) mod args;
pub(crate) mod run;
