//! The laboratory: which policy would have served a trace of real traffic best? It keeps the
//! gateway's own ledgers, asks its own policies and drives the simulator's engines, in virtual
//! time: an hour of traffic takes seconds, and a seed gives the same result each time.

pub mod experiment;
pub mod fleet;
mod peers;
pub mod router;
pub mod score;
pub mod synthesis;
pub mod trace;
pub mod world;

#[cfg(test)]
mod tests;
