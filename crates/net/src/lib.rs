//! TLS, the outbound HTTP/1.1 client, and supervised background tasks.

pub mod supervise;

pub mod tls;

pub mod client;
pub mod connection;
pub mod descriptors;
pub mod fetch;
pub mod idle;
pub mod shortage;
