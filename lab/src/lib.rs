//! The laboratory, the program `tokenweir-lab`: a simulation of routing policies and other routers in virtual
//! time, a load generator, and a calculator of vLLM's settings. The gateway does not need this program.

mod admin_client;
mod admission;
pub mod bench;
pub mod cli;
mod output;
mod progress;
pub mod replay;
pub mod tournament;
pub mod tune;
