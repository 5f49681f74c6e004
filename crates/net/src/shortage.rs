//! Errors of connecting that come from the gateway itself: it has no file descriptor, port or memory
//! left. They say nothing of the backend.

use socket2::{Domain, Socket, Type};
use std::error::Error as StdError;
use std::io::{self, ErrorKind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokenweir_core::clock;

/// Shortest time between two log lines about it.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Says what the gateway lacks, if `cause` is such an error.
pub fn of(cause: &(dyn StdError + 'static)) -> Option<String> {
    let error = cause.downcast_ref::<io::Error>();
    let has_code = error.is_some_and(|error| error.raw_os_error().is_some());
    if let Some(advice) = error.and_then(advice) {
        return Some(format!("{cause}; {advice}"));
    }
    // A name cannot be resolved without a file descriptor, and the resolver does not say so.
    let probe =
        (!has_code && !is_timeout(error)).then(|| Socket::new(Domain::IPV4, Type::STREAM, None));
    let problem = probe?.err()?;
    Some(format!("{problem}; {}", advice(&problem)?))
}

/// A timeout has no code either, and is the backend's.
fn is_timeout(error: Option<&io::Error>) -> bool {
    error.is_some_and(|error| error.kind() == ErrorKind::TimedOut)
}

/// The codes of Unix for these errors, which have no [`ErrorKind`]: too many files of the process, of
/// the machine, and no buffer for a socket.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
const ENOBUFS: i32 = if cfg!(target_os = "linux") { 105 } else { 55 };

/// What an operator can do about an error that is a shortage.
fn advice(error: &io::Error) -> Option<&'static str> {
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

/// Writes a line to the log, but not often: in a shortage every request has the same problem.
pub fn warn(problem: &str) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let now = clock::now();
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let is_recent = |at: Instant| now.saturating_duration_since(at) < WARN_EVERY;
    if !last.is_some_and(is_recent) {
        *last = Some(now);
        tracing::error!(problem, "the gateway cannot connect to backends; they are not at fault");
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_of_the_gateway_is_told_from_a_backend_that_refuses() {
        let of = |code| of(&io::Error::from_raw_os_error(code));
        // ENOMEM, and EADDRNOTAVAIL of Linux.
        for code in [EMFILE, ENFILE, ENOBUFS, 12, 99] {
            assert!(of(code).is_some(), "{code}");
        }
        // ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH and ECONNRESET.
        for code in [111, 110, 113, 104] {
            assert_eq!(of(code), None, "{code}");
        }
        assert!(of(EMFILE).unwrap().contains("LimitNOFILE"));
        let resolver = io::Error::other("failed to lookup address information");
        assert_eq!(super::of(&resolver), None, "there are descriptors");
    }
}
