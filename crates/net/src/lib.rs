//! TLS, the HTTP/1.1 client for backends, and supervised background tasks.

pub mod supervise;

pub mod tls;

pub mod file_descriptors;
pub mod resource_exhaustion;
mod send_error;

pub mod connection;

pub mod idle_pool;

pub mod backend_body;

pub mod client;

pub mod page_fetcher;
