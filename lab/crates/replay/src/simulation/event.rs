//! The events of a simulation.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimulationEvent {
    /// A request arrives: its number in the trace.
    Arrival(usize),
    /// An engine has computed a batch: position of the backend, number of the engine process.
    BatchDone(usize, u32),
    /// A gateway scrapes a backend: position of the gateway, position of the backend.
    Scrape(usize, usize),
    /// A request has reached its deadline in the queue of its gateway: its number.
    QueueDeadline(usize),
    /// The API server of a backend passes a request to its engine: number of the request, number of the
    /// attempt.
    Submit(usize, u32),
    /// The KV events of an engine step arrive at the gateways: position of the backend.
    KvEvents(usize),
    /// The oldest message in transit between gateways arrives.
    PeerMessage,
    /// The gateway of a request that has ended now knows which blocks have its text: number of the request.
    TextLearned(usize),
    /// The outline (hashes of parts) of a prompt arrives at all gateways: number of the request.
    OutlineReceived(usize),
    /// The process of a backend ends, and a new process is started: position of the backend.
    Restart(usize),
    /// The new process of a backend can serve: position of the backend, number of the process.
    Started(usize, u32),
}
