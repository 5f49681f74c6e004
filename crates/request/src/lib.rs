//! One request in the gateway: its access, its errors, its continuation at another backend, and the
//! observation of its response up to its record.
//!
//! No module does I/O. [`batch_queue`] and [`observe`] read the clock.

pub mod access;
pub mod answer;
pub mod batch_queue;
pub mod continuation;
pub mod error;
pub mod observe;
pub mod record;
pub mod runs;
pub mod significance;
pub mod slo;
