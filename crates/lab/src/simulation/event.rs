//! The events of a simulation.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimulationEvent {
    /// A request arrives, by its number in the trace.
    Arrival(usize),
    /// A batch of an engine is done.
    BatchDone(usize),
    /// A gateway scrapes a backend: gateway, backend.
    Scrape(usize, usize),
    /// The API server of a backend passes a request to its engine.
    Submit(usize),
    /// The KV events of a step arrive at the gateways, by backend.
    KvEvents(usize),
    /// The oldest message of all messages between gateways that are on the way arrives.
    PeerMessage,
}
