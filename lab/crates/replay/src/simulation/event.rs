//! The events of a simulation.

/// Something that happens at a time of a simulation.
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
    /// A waiting request has waited so long for room beside the live sessions that it goes on without: its number.
    GateDeadline(usize),
    /// A gateway reconsiders the turns of sessions that it holds: position of the gateway.
    GateTick(usize),
    /// The API server of a backend passes a request to its engine: number of the request, number of the
    /// attempt.
    Submit(usize, u32),
    /// The KV events of an engine step arrive at the gateways: position of the backend.
    KvEvents(usize),
    /// A message between gateways arrives.
    PeerMessage(PeerMessage),
    /// A gateway can recognize the cache blocks of a prompt that it sent, because its request has ended:
    /// number of the request.
    TextLearned(usize),
    /// The process of a backend ends, and a new process is started: position of the backend.
    Restart(usize),
    /// The new process of a backend can serve: position of the backend, number of the process.
    Started(usize, u32),
}

/// A message of one gateway to another one. It states which prompt the gateway sends, and its pending prompt
/// tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerMessage {
    /// The gateway that sends the message.
    pub(super) from: usize,
    /// The gateway that receives the message.
    pub(super) to: usize,
    pub(super) backend: usize,
    /// Number of the request that the gateway sent to the backend. `None`: the message is about a first
    /// output or the end of a request.
    pub(super) sent: Option<usize>,
    /// Number of the sender's prompt tokens that the backend still has to compute. It is the total and not
    /// the change, so the next message also makes up for a lost one.
    pub(super) pending_tokens: u64,
}
