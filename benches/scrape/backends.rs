//! Backends with recorded metrics pages, each on a separate port.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use tokenweir_engine::dialect::EngineLoad;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;

/// The bodies of all recorded pages with known metrics.
pub(crate) fn pages() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire/metrics");
    let files = fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
    let body = |answer: Vec<u8>| {
        let head = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        answer[head..].to_vec()
    };
    files.map(body).filter(|page| EngineLoad::read(page).is_understood()).collect()
}

/// Serves the pages on `count` ports, in turn, for the lifetime of the process. Returns the
/// addresses.
pub(crate) fn serve(pages: Vec<Vec<u8>>, count: usize) -> Vec<String> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answers: Vec<Arc<[u8]>> = pages.into_iter().map(|page| answer(&page).into()).collect();
    let bind = |_| runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let listeners: Vec<TcpListener> = (0..count).map(bind).collect();
    let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    let addresses = listeners.iter().map(address).collect();
    thread::spawn(move || {
        for (listener, page) in listeners.into_iter().zip(answers.into_iter().cycle()) {
            runtime.spawn(accept(listener, page));
        }
        runtime.block_on(std::future::pending::<()>());
    });
    addresses
}

fn answer(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

async fn accept(listener: TcpListener, page: Arc<[u8]>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(converse(stream, page.clone()));
    }
}

async fn converse(mut stream: TcpStream, page: Arc<[u8]>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let models = answer(br#"{"data":[{"id":"tiny","owned_by":"vllm"}]}"#);
    let version = answer(br#"{"version":"0.32.0"}"#);
    let well = answer(b"");
    let mut request = Vec::new();
    loop {
        request.clear();
        // Scrape requests have no body.
        while !request.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
        let answer = match request.split(|byte| *byte == b' ').nth(1) {
            Some(b"/metrics") => &page,
            Some(b"/v1/models") => &models[..],
            Some(b"/version") => &version,
            _ => &well,
        };
        stream.write_all(answer).await?;
    }
}
