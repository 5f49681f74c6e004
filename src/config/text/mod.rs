//! The text of a configuration file: reading it, parsing it, and errors at positions in it.

pub(super) mod error;
pub(super) mod file;
pub(super) mod redaction;
pub(super) mod remaining;
pub(super) mod renames;
pub(super) mod source;
pub(super) mod yaml;
