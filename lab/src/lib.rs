//! The laboratory: routing policies and other routers in virtual time, a load generator, and a
//! calculator of vLLM's settings. It is a program beside the gateway, which needs none of it.

pub mod bench;
pub mod cli;
mod progress;
pub mod replay;
pub mod tournament;
pub mod tune;
