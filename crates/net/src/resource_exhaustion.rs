//! Detects connection errors that the gateway's own machine causes: it has no file descriptor, port or memory
//! left. The backend is not at fault for these errors.

use socket2::{Domain, Socket, Type};
use std::error::Error as StdError;
use std::io::{self, ErrorKind};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokio::time::error::Elapsed;

/// Minimum time between two log messages about resource exhaustion.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Describes the exhausted resource and the remedy. `None`: `cause` is not an exhausted resource.
pub fn describe_exhaustion(cause: &(dyn StdError + 'static)) -> Option<String> {
    let error = cause.downcast_ref::<io::Error>();
    let has_code = error.is_some_and(|error| error.raw_os_error().is_some());
    if let Some(remedy) = error.and_then(remedy) {
        return Some(format!("{cause}; {remedy}"));
    }
    // If no file descriptor is free, a DNS lookup fails with an error that has no code. So the function tests
    // whether a socket can be opened.
    let test_socket =
        (!has_code && !is_timeout(cause)).then(|| Socket::new(Domain::IPV4, Type::STREAM, None));
    let problem = test_socket?.err()?;
    Some(format!("{problem}; {}", remedy(&problem)?))
}

/// Whether a connection took longer than its time limit. The fault is then that of the backend, not of this
/// machine.
pub(crate) fn is_timeout(cause: &(dyn StdError + 'static)) -> bool {
    let error = cause.downcast_ref::<io::Error>();
    cause.is::<Elapsed>() || error.is_some_and(|error| error.kind() == ErrorKind::TimedOut)
}

/// Unix error codes without an [`ErrorKind`]: too many open files in the process (`EMFILE`), on the
/// machine (`ENFILE`), and no memory for a socket buffer (`ENOBUFS`).
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
const ENOBUFS: i32 = if cfg!(target_os = "linux") { 105 } else { 55 };

/// The remedy for an exhausted resource. `None`: the error has another cause.
fn remedy(error: &io::Error) -> Option<&'static str> {
    match (error.raw_os_error()?, error.kind()) {
        (EMFILE, _) => Some("raise the limit of open files (LimitNOFILE, ulimit -n)"),
        (ENFILE, _) => Some("raise fs.file-max: the machine has no open files left"),
        (ENOBUFS, _) | (_, ErrorKind::OutOfMemory) => {
            Some("the machine is short of memory for sockets")
        }
        (_, ErrorKind::AddrNotAvailable) => {
            Some("no local port is left (net.ipv4.ip_local_port_range), or no route to the address")
        }
        _ => None,
    }
}

/// Logs resource exhaustion at most once per `WARN_INTERVAL`, because each request would log it.
pub fn warn_rate_limited(problem: &str) {
    static LAST_WARNING: Mutex<Option<Instant>> = Mutex::new(None);
    let now = clock::now();
    let mut last_warning = lock(&LAST_WARNING);
    let is_recent = |at: Instant| now.saturating_duration_since(at) < WARN_INTERVAL;
    if !last_warning.is_some_and(is_recent) {
        *last_warning = Some(now);
        tracing::error!(
            problem,
            "the gateway has no resources for connections to backends: requests fail until \
             resources are free"
        );
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn own_exhaustion_differs_from_backend_errors() {
        let describe = |code| describe_exhaustion(&io::Error::from_raw_os_error(code));
        // 12 is ENOMEM, 99 is EADDRNOTAVAIL on Linux.
        for code in [EMFILE, ENFILE, ENOBUFS, 12, 99] {
            assert!(describe(code).is_some(), "{code}");
        }
        // ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH and ECONNRESET.
        for code in [111, 110, 113, 104] {
            assert_eq!(describe(code), None, "{code}");
        }
        assert!(describe(EMFILE).unwrap().contains("LimitNOFILE"));
        let resolver_error = io::Error::other("failed to lookup address information");
        assert_eq!(
            describe_exhaustion(&resolver_error),
            None,
            "descriptors are free"
        );
    }
}
