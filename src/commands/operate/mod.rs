//! `tokenweir status`, `explain`, `drain`, `undrain` and `reload`: one request each to the admin
//! listener of a running gateway.

mod access_log;
pub mod args;
pub mod run;
