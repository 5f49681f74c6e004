//! The HTTP/1.1 client for backends, TLS, background tasks that restart after a panic, and detection of file
//! changes.

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub mod file_watcher;
pub mod supervise;

pub mod tls;

pub mod file_descriptors;
pub mod request_stream;
pub mod resource_exhaustion;
mod send_error;

pub mod connection;

pub mod idle_pool;

pub mod backend_body;

pub mod client;

pub mod page_fetcher;
