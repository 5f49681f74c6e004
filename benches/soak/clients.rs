//! The clients. Each sends one request after the other, and reuses its connection where possible.

use super::engine::post;
use super::faulty::FAULTS;
use fastrand::Rng;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const CLIENTS: u64 = 24;
/// Time after which a client treats its request as failed.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Clients {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

struct Shared {
    to: SocketAddr,
    sent: Mutex<Sent>,
    most: usize,
    is_over: AtomicBool,
}

/// How many requests the clients have begun, by the plan of the request.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) whole: usize,
    pub(crate) left: usize,
    pub(crate) faulty: usize,
    pub(crate) malformed: usize,
    /// Number of requests of [`Plan::Whole`] whose response was wrong.
    pub(crate) wrong: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// The client reads the whole response.
    Whole,
    /// The client disconnects after this many reads of the response.
    Leaves(usize),
    /// The request goes to the faulty backend, which fails.
    Faulty,
    /// The request is malformed, and the gateway rejects it.
    Malformed,
}

impl Clients {
    pub(crate) fn start(to: SocketAddr, most: usize) -> Self {
        let is_over = AtomicBool::new(false);
        let shared = Arc::new(Shared {
            to,
            sent: Mutex::default(),
            most,
            is_over,
        });
        let mut tasks = JoinSet::new();
        for seed in 0..CLIENTS {
            tasks.spawn(one(shared.clone(), Rng::with_seed(seed)));
        }
        Self { shared, tasks }
    }

    /// Number of requests that all clients have begun so far.
    pub(crate) fn sent(&self) -> usize {
        self.shared.sent.lock().unwrap().all()
    }

    /// Whether the clients have begun the maximum number of requests.
    pub(crate) fn is_over(&self) -> bool {
        self.sent() >= self.shared.most
    }

    /// Stops all clients after their current request. Returns the counts.
    pub(crate) async fn stop(self) -> Sent {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.tasks.join_all().await;
        *self.shared.sent.lock().unwrap()
    }
}

async fn one(shared: Arc<Shared>, mut random: Rng) {
    let mut idle_connection = None;
    while !shared.is_over.load(Ordering::Relaxed) {
        let plan = match random.u32(0..1_000) {
            0..10 => Plan::Faulty,
            10..15 => Plan::Malformed,
            15..215 => Plan::Leaves(random.usize(0..6)),
            _ => Plan::Whole,
        };
        if !shared.begin(plan) {
            return;
        }
        let request = request(plan, &mut random);
        let asking = ask(shared.to, &request, plan, idle_connection.take());
        let result = tokio::time::timeout(RESPONSE_TIMEOUT, asking).await;
        match result {
            Ok(Ok(stream)) => idle_connection = stream,
            wrong if plan == Plan::Whole => {
                eprintln!("wrong response: {wrong:?}");
                shared.sent.lock().unwrap().wrong += 1;
            }
            _ => {}
        }
    }
}

impl Shared {
    /// Counts a request that begins. Returns false if the clients have begun the maximum number of requests.
    fn begin(&self, plan: Plan) -> bool {
        let mut sent = self.sent.lock().unwrap();
        let may_begin = sent.all() < self.most;
        if may_begin {
            match plan {
                Plan::Whole => sent.whole += 1,
                Plan::Leaves(_) => sent.left += 1,
                Plan::Faulty => sent.faulty += 1,
                Plan::Malformed => sent.malformed += 1,
            }
        }
        may_begin
    }
}

fn request(plan: Plan, random: &mut Rng) -> String {
    let (stream, tokens) = (random.u8(0..4) > 0, random.u32(1..40));
    let prompt = "word ".repeat(random.usize(1..200));
    let model = if plan == Plan::Faulty {
        "faulty"
    } else {
        "sim-model"
    };
    let fault = FAULTS[random.usize(..FAULTS.len())];
    let body = format!(
        "{{\"model\":\"{model}\",\"stream\":{stream},\"max_tokens\":{tokens},\"fault\":\"{fault}\",\
         \"messages\":[{{\"role\":\"user\",\"content\":\"{prompt}\"}}]}}"
    );
    post(if plan == Plan::Malformed { "{" } else { &body })
}

/// Sends a request and reads its response as `plan` says. Returns the connection if it can be reused, or a
/// text about what was wrong.
async fn ask(
    to: SocketAddr,
    request: &str,
    plan: Plan,
    idle_connection: Option<TcpStream>,
) -> Result<Option<TcpStream>, String> {
    // The gateway can close an idle connection. A client that disconnects uses a new one, so that its request
    // is sent in any case.
    let mut stream = match idle_connection.filter(|_| plan == Plan::Whole) {
        Some(stream) => stream,
        None => TcpStream::connect(to)
            .await
            .map_err(|error| error.to_string())?,
    };
    stream
        .write_all(request.as_bytes())
        .await
        .map_err(|error| error.to_string())?;
    let (mut answer, mut reads) = (Vec::with_capacity(16 << 10), 0);
    loop {
        if plan == Plan::Leaves(reads) {
            return Ok(None);
        }
        let count = stream
            .read_buf(&mut answer)
            .await
            .map_err(|error| error.to_string())?;
        reads += 1;
        if is_whole(&answer) {
            let is_ok = answer.starts_with(b"HTTP/1.1 200 ");
            let shown = || String::from_utf8_lossy(&answer[..answer.len().min(300)]).into_owned();
            return if is_ok {
                Ok(Some(stream))
            } else {
                Err(shown())
            };
        }
        if count == 0 {
            return Err(format!("cut after {} bytes", answer.len()));
        }
    }
}

/// Whether the bytes contain a whole response.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = memchr::memmem::find(answer, b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    match head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
    {
        Some(length) => answer.len() >= end + 4 + length.trim().parse::<usize>().unwrap(),
        None => answer.ends_with(b"\r\n0\r\n\r\n"),
    }
}

/// Whether the gateway lists the model of the simulated backends and that of the faulty backend.
pub(crate) async fn knows_both_models(gateway: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(gateway).await.unwrap();
    let request = "GET /v1/models HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    page.contains("\"sim-model\"") && page.contains("\"faulty\"")
}

impl Sent {
    pub(crate) fn all(&self) -> usize {
        self.whole + self.left + self.faulty + self.malformed
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            whole,
            left,
            faulty,
            malformed,
            wrong,
        } = self;
        write!(
            f,
            "{} requests: {whole} whole ({wrong} wrong), {left} left, {faulty} with a fault, \
             {malformed} malformed",
            self.all()
        )
    }
}
