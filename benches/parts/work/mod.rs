//! The parts of the hot path, each as a piece of work that can be done again and again.

mod routing;
mod sinks;
mod wire;

pub(crate) use wire::chunks;

/// A part and its work.
pub(crate) struct Part {
    /// What is done to one item, and to what.
    pub(crate) name: String,
    /// Items of one piece of work.
    pub(crate) items: u64,
    /// Bytes of them. 0: none are read or written.
    pub(crate) bytes: u64,
    /// Does it once.
    pub(crate) work: Box<dyn FnMut()>,
}

/// All of them; routing in fleets of these sizes.
pub(crate) fn all(fleets: &[usize]) -> Vec<Part> {
    let routing = fleets.iter().flat_map(|replicas| routing::decisions(*replicas));
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
        Self { name: name.into(), items: items as u64, bytes: bytes as u64, work: Box::new(work) }
    }
}
