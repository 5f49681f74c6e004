//! The parts of the hot path, each as work that a bench can repeat.

#[path = "../../../tests/suite/support/chunked_body.rs"]
mod chunked_body;
mod routing;
mod sinks;
mod wire;

pub(crate) use wire::chunks;

/// A part of the hot path: an operation, such as parsing a stream, and the work that executes it.
pub(crate) struct Part {
    /// The name of the part: the operation and its input.
    pub(crate) name: String,
    /// Number of items, such as chunks or decisions, per iteration.
    pub(crate) items: u64,
    /// Number of bytes that one iteration reads or writes. 0 if it reads and writes none.
    pub(crate) bytes: u64,
    /// Executes one iteration of the measured operation.
    pub(crate) work: Box<dyn FnMut()>,
}

/// Returns all parts of the hot path. The routing decisions are measured once for each of these numbers of
/// backends.
pub(crate) fn all(fleets: &[usize]) -> Vec<Part> {
    let routing = fleets
        .iter()
        .flat_map(|backends| routing::decisions(*backends));
    wire::parts()
        .into_iter()
        .chain(routing)
        .chain(routing::prompts())
        .chain(sinks::parts())
        .collect()
}

impl Part {
    fn new(
        name: impl Into<String>,
        items: usize,
        bytes: usize,
        work: impl FnMut() + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            items: items as u64,
            bytes: bytes as u64,
            work: Box::new(work),
        }
    }
}
