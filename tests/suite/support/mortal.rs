//! A wire to a scripted replica that dies when a request on it has come to a chosen byte: its port
//! is gone and every connection is cut, as if the process had been killed. It can be revived.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

/// When it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Death {
    /// After so many bytes of a request.
    Asked(usize),
    /// After so many bytes of the answers on a connection.
    Answered(usize),
}

/// A replica that can be killed.
pub(crate) struct Mortal {
    /// Where it listens, in every life.
    pub addr: SocketAddr,
    replica: SocketAddr,
    fate: Arc<Fate>,
    life: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Fate {
    death: Mutex<Option<Death>>,
    struck: Notify,
}

impl Mortal {
    /// A wire to this replica.
    pub(crate) async fn before(replica: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let fate = Arc::<Fate>::default();
        let life = Some(tokio::spawn(live(listener, replica, fate.clone())));
        Self { addr, replica, fate, life }
    }

    /// It will die then.
    pub(crate) fn doom(&self, death: Death) {
        *self.fate.death.lock().unwrap() = Some(death);
    }

    /// It dies now, if it has not. Gives whether it had.
    pub(crate) async fn kill(&mut self) -> bool {
        let had_died = self.fate.death.lock().unwrap().take().is_none();
        self.fate.struck.notify_one();
        if let Some(life) = self.life.take() {
            life.await.unwrap();
        }
        had_died
    }

    /// It lives again, at the same address.
    pub(crate) async fn revive(&mut self) {
        self.fate = Arc::default();
        let listener = TcpListener::bind(self.addr).await.unwrap();
        self.life = Some(tokio::spawn(live(listener, self.replica, self.fate.clone())));
    }
}

async fn live(listener: TcpListener, replica: SocketAddr, fate: Arc<Fate>) {
    // Dropped with this task, and with them both ends of every wire.
    let mut wires = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = fate.struck.notified() => return,
            accepted = listener.accept() => {
                wires.spawn(wire(accepted.unwrap().0, replica, fate.clone()));
            }
        }
    }
}

async fn wire(mut gateway: TcpStream, replica: SocketAddr, fate: Arc<Fate>) {
    let Ok(mut replica) = TcpStream::connect(replica).await else { return };
    let (mut asked, mut answered, mut is_inference) = (0, 0, false);
    let (mut question, mut answer) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    loop {
        tokio::select! {
            read = gateway.read(&mut question) => {
                let bytes = &question[..read.unwrap_or(0)];
                is_inference |= bytes.starts_with(b"POST");
                let death = fate.death(is_inference, |death| match death {
                    Death::Asked(at) => at.checked_sub(asked),
                    Death::Answered(_) => None,
                });
                asked += bytes.len();
                if !pass(bytes, death, &mut replica, &fate).await { return }
            }
            read = replica.read(&mut answer) => {
                let bytes = &answer[..read.unwrap_or(0)];
                let death = fate.death(is_inference, |death| match death {
                    Death::Answered(at) => at.checked_sub(answered),
                    Death::Asked(_) => None,
                });
                answered += bytes.len();
                if !pass(bytes, death, &mut gateway, &fate).await { return }
            }
        }
    }
}

/// Passes bytes on, up to the one at which it dies. Whether the wire goes on.
async fn pass(bytes: &[u8], death: Option<usize>, to: &mut TcpStream, fate: &Fate) -> bool {
    let last = death.filter(|at| *at <= bytes.len());
    let is_passed = to.write_all(&bytes[..last.unwrap_or(bytes.len())]).await.is_ok();
    if last.is_some() && fate.death.lock().unwrap().take().is_some() {
        fate.struck.notify_one();
        // Whoever waits for this life to end cuts this wire.
        std::future::pending::<()>().await;
    }
    is_passed && !bytes.is_empty()
}

impl Fate {
    /// How many bytes from here on it dies, if it does on a wire of this kind.
    fn death(
        &self,
        is_inference: bool,
        after: impl FnOnce(Death) -> Option<usize>,
    ) -> Option<usize> {
        let death = *self.death.lock().unwrap();
        death.filter(|_| is_inference).and_then(after)
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        if let Some(life) = &self.life {
            life.abort();
        }
    }
}
