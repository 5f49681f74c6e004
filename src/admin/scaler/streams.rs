//! The open `StreamIsActive` streams of the scaler, and the choice of the stream that a new one replaces.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokenweir_protocol::limits;
use tokenweir_protocol::mutex::lock;

/// Maximum number of open `StreamIsActive` streams. It is below the number of connections of the admin
/// listener.
pub const MAX_SCALER_STREAMS: usize = 48;

/// The open `StreamIsActive` streams, from the oldest to the newest.
#[derive(Debug, Default)]
pub(in crate::admin) struct ScalerStreams(Mutex<Vec<ScalerStream>>);

#[derive(Debug)]
struct ScalerStream {
    /// The address (IPv4) or /64 network (IPv6) of the client. `None`: the call did not arrive over a
    /// socket.
    client: Option<IpAddr>,
    is_replaced: Arc<AtomicBool>,
}

/// Counts one stream as open until it is dropped or replaced.
pub(super) struct ScalerPermit {
    streams: Arc<ScalerStreams>,
    is_replaced: Arc<AtomicBool>,
}

impl ScalerStreams {
    /// Counts a new stream. At the limit, it replaces the oldest stream of the client with the most streams, so
    /// that no client can lock out KEDA.
    pub(super) fn open(self: &Arc<Self>, client: Option<IpAddr>) -> ScalerPermit {
        let is_replaced = Arc::<AtomicBool>::default();
        let mut streams = lock(&self.0);
        if streams.len() >= MAX_SCALER_STREAMS
            && let Some(oldest) = oldest_of_busiest(&streams)
        {
            streams
                .remove(oldest)
                .is_replaced
                .store(true, Ordering::Relaxed);
        }
        streams.push(ScalerStream {
            client,
            is_replaced: is_replaced.clone(),
        });
        ScalerPermit {
            streams: self.clone(),
            is_replaced,
        }
    }
}

/// The position of the oldest stream of the client with the most streams.
fn oldest_of_busiest(streams: &[ScalerStream]) -> Option<usize> {
    let busiest = limits::busiest(streams.iter().map(|stream| stream.client));
    streams
        .iter()
        .position(|stream| busiest.contains(&stream.client))
}

impl ScalerPermit {
    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }
}

impl Drop for ScalerPermit {
    fn drop(&mut self) {
        lock(&self.streams.0).retain(|stream| !Arc::ptr_eq(&stream.is_replaced, &self.is_replaced));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_replaces_the_busiest_clients_oldest() {
        let streams = Arc::<ScalerStreams>::default();
        let [keda, other] = [1, 2].map(|last_byte| Some(IpAddr::from([10, 0, 0, last_byte])));
        let of_keda = streams.open(keda);
        let mut of_other: Vec<_> = (1..MAX_SCALER_STREAMS)
            .map(|_| streams.open(other))
            .collect();
        assert!(!of_other[0].is_replaced());
        let second = streams.open(keda);
        assert!(of_other[0].is_replaced() && !of_other[1].is_replaced());
        assert!(!of_keda.is_replaced() && !second.is_replaced());
        drop(of_other.pop());
        let _third = streams.open(keda);
        assert!(!of_other[1].is_replaced(), "a place was free");
        assert_eq!(lock(&streams.0).len(), MAX_SCALER_STREAMS);
    }
}
