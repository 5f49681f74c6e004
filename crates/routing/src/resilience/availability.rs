//! Whether a backend may get new requests.

use tokenweir_engine::dialect::EngineLoad;
use tokenweir_protocol::named_enum;

named_enum! {
    /// Whether a backend may get new requests, and if not, why.
    #[derive(PartialOrd, Ord)]
    pub enum Availability {
        /// The backend gets new requests. A full backend is available too, and requests wait for it in the
        /// queue.
        Available = "available",
        /// The circuit breaker has ejected the backend, because it failed requests.
        Ejected = "ejected",
        /// The engine reports that it sleeps. Its weights are not on the GPU.
        Asleep = "asleep",
        /// The engine reports that an operator paused it. It refuses or holds requests.
        Paused = "paused",
        /// The backend accepts connections again after it refused them, but is not healthy yet.
        Starting = "starting",
        /// The engine serves nothing while its number of data-parallel ranks changes.
        Scaling = "scaling",
        /// The engine was removed from its group of data-parallel ranks and serves nothing any more.
        Retired = "retired",
        /// The configured weight is 0.
        ZeroWeight = "zero_weight",
        /// An operator has drained the backend.
        Drained = "drained",
        /// Health checks fail, a connection of a request failed, or the engine makes no progress.
        Down = "down",
        /// The first health check has not completed.
        Unknown = "unknown",
    }
}

impl Availability {
    /// The availability that the metrics page of an engine shows. `None`: the page does not exclude the engine.
    pub fn of_engine(load: &EngineLoad) -> Option<Self> {
        let is_asleep = load.is_asleep() == Some(true);
        is_asleep.then_some(Self::Asleep)
    }
}
