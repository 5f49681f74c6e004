//! Reads the addresses of a gateway from the log that it writes at its start.

use std::net::SocketAddr;

/// The address of a listener (`clients` or `admin`) in the log of a gateway. The log is text or JSON. `None`:
/// the log does not contain the address yet.
pub(crate) fn listener_address(log: &str, name: &str) -> Option<SocketAddr> {
    let after = |mark: String| log.split_once(&mark).map(|(_, rest)| rest);
    let url = after(format!("\"{name}\":\"")).or_else(|| after(format!("  {name} ")))?;
    let address = url.trim_start().strip_prefix("http://")?;
    let end = address.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':')?;
    address[..end].parse().ok()
}
