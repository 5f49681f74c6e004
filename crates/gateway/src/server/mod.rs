//! Runs the client listener and the admin listener, and drains the gateway at shutdown.
//!
//! [`Server::run`] accepts connections until the shutdown signal. It then keeps accepting for `drain_delay`,
//! closes the client listener, waits up to `drain_timeout` for open connections to end, and aborts the rest.

mod accept_loop;
mod activity;
mod admin_listener;
mod client_stream;
mod connection;
mod descriptor_budget;
mod guarded_body;
mod limits;
mod listener;
mod memory_monitor;
mod run;
mod tls;

pub use connection::limiter::ConnectionLimiter;
pub use connection::state::ServerState;
pub use descriptor_budget::{DescriptorBudget, raise_file_limit};
pub use limits::ServerLimits;
pub use listener::{BindError, BoundSocket, bind_listener, bind_socket};
pub use run::{DrainOutcome, Server};
pub use tls::ServerTls;
