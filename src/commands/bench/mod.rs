//! `tokenweir bench`: measures a server under load.

pub(crate) mod args;
mod drive;
mod opening;
pub(crate) mod run;
