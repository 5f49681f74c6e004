//! The events of a simulation.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimulationEvent {
    /// A request arrives, by its number in the trace.
    Arrival(usize),
    /// A batch of an engine is done: backend, number of the process of the engine.
    BatchDone(usize, u32),
    /// A gateway scrapes a backend: gateway, backend.
    Scrape(usize, usize),
    /// A request has waited in its gateway as long as it may.
    QueueDeadline(usize),
    /// The API server of a backend passes a request to its engine: request, number of the attempt.
    Submit(usize, u32),
    /// The KV events of a step arrive at the gateways, by backend.
    KvEvents(usize),
    /// The oldest message of all messages between gateways that are on the way arrives.
    PeerMessage,
    /// The gateway of a request that has ended knows the blocks of its text.
    TextLearned(usize),
    /// The outline of the prompt of a request arrives at all gateways, by its number.
    OutlineReceived(usize),
    /// The process of a backend ends, and a new one is started.
    Restart(usize),
    /// The process of a backend can serve: backend, number of the process.
    Started(usize, u32),
}
