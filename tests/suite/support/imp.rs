//! A wire to a replica on which things go wrong, as a seed says: answers hang, break off, are reset,
//! come slowly, or are not HTTP; or there is a 429, a 500 or a 503 instead. Looks at the replica's
//! health and metrics pass.

use super::fake::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// The wire.
pub(crate) struct Imp {
    /// Where it listens.
    pub addr: SocketAddr,
    moods: Arc<Moods>,
    accepting: JoinHandle<()>,
}

struct Moods {
    seed: u64,
    number: AtomicU64,
    is_tame: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
enum Mood {
    /// All passes.
    Tame,
    /// Nothing of the answer does.
    Hangs,
    /// So many bytes of it do, and then the connection closes, or is reset.
    BreaksOff { after: usize, by_reset: bool },
    /// It comes in small pieces.
    Dawdles,
    /// Something else comes.
    Says(&'static str),
    /// What is no HTTP comes.
    Babbles,
}

impl Imp {
    /// A wire to this replica.
    pub(crate) async fn before(replica: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let moods =
            Arc::new(Moods { seed, number: AtomicU64::new(0), is_tame: AtomicBool::new(false) });
        let accepting = tokio::spawn({
            let moods = moods.clone();
            async move {
                let mut wires = JoinSet::new();
                while let Ok((gateway, _)) = listener.accept().await {
                    wires.spawn(wire(gateway, replica, moods.clone()));
                }
            }
        });
        Self { addr, moods, accepting }
    }

    /// Nothing goes wrong on new connections from now on.
    pub(crate) fn tame(&self) {
        self.moods.is_tame.store(true, Ordering::SeqCst);
    }
}

impl Drop for Imp {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Moods {
    fn next(&self) -> Mood {
        let number = self.number.fetch_add(1, Ordering::SeqCst);
        let mut random = fastrand::Rng::with_seed(self.seed ^ (number << 8));
        if self.is_tame.load(Ordering::SeqCst) {
            return Mood::Tame;
        }
        match random.u8(..20) {
            0 => Mood::Hangs,
            1..=3 => Mood::BreaksOff { after: random.usize(..3_000), by_reset: random.bool() },
            4 => Mood::Dawdles,
            5 => Mood::Says("429 Too Many Requests"),
            6 => Mood::Says("500 Internal Server Error"),
            7 => Mood::Says("503 Service Unavailable"),
            8 => Mood::Babbles,
            _ => Mood::Tame,
        }
    }
}

async fn wire(mut gateway: TcpStream, replica: SocketAddr, moods: Arc<Moods>) {
    let Ok(mut replica) = TcpStream::connect(replica).await else { return };
    let (mut question, mut answer) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    let (mut mood, mut passed) = (None, 0);
    loop {
        tokio::select! {
            read = gateway.read(&mut question) => {
                let bytes = &question[..read.unwrap_or(0)];
                if bytes.is_empty() || replica.write_all(bytes).await.is_err() { return }
                if bytes.starts_with(b"POST") {
                    mood.get_or_insert_with(|| moods.next());
                }
            }
            read = replica.read(&mut answer) => {
                let bytes = &answer[..read.unwrap_or(0)];
                if bytes.is_empty() || !pass(bytes, mood, passed, &mut gateway).await { return }
                passed += bytes.len();
            }
        }
    }
}

/// Passes some of an answer on. Whether the wire goes on.
async fn pass(bytes: &[u8], mood: Option<Mood>, passed: usize, gateway: &mut TcpStream) -> bool {
    match mood.unwrap_or(Mood::Tame) {
        Mood::Tame => gateway.write_all(bytes).await.is_ok(),
        Mood::Hangs => true,
        Mood::BreaksOff { after, by_reset } => {
            let rest = after.saturating_sub(passed);
            if gateway.write_all(&bytes[..rest.min(bytes.len())]).await.is_err() {
                return false;
            }
            if rest < bytes.len() && by_reset {
                gateway.set_zero_linger().unwrap();
            }
            rest >= bytes.len()
        }
        Mood::Dawdles => {
            for piece in bytes.chunks(7) {
                if gateway.write_all(piece).await.is_err() {
                    return false;
                }
                tokio::task::yield_now().await;
            }
            true
        }
        Mood::Says(status) => {
            // The gateway may have left.
            let _ = gateway.write_all(&json(status, "{}")).await;
            false
        }
        Mood::Babbles => {
            let _ = gateway.write_all(b"\x16\x03\x01 what is this\r\n\r\n").await;
            false
        }
    }
}
