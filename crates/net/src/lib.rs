//! TLS, the HTTP/1.1 client for backends, and supervised background tasks.

pub mod supervise;

pub mod tls;

pub mod client;
pub mod connection;
pub mod file_descriptors;
pub mod idle_pool;
pub mod page_fetcher;
pub mod resource_exhaustion;
