//! The status and the metrics that options of the request path add.

pub mod resume;
