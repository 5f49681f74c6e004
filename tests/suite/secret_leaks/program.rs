//! The real program with every output about requests enabled.

use super::secret_responses::secret;
use crate::metrics::sum;
use crate::support::process::{self, GatewayProcess, folder};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A running gateway with every output about requests enabled.
pub(super) struct Program {
    pub(super) process: GatewayProcess,
    capture: PathBuf,
    usage: PathBuf,
    texts: PathBuf,
}

/// The outputs of the program, complete after its end.
pub(super) struct Ended {
    pub(super) access_log: String,
    pub(super) log: String,
    pub(super) capture: Vec<u8>,
    pub(super) usage: Vec<u8>,
    pub(super) content: Vec<u8>,
}

impl Program {
    /// Starts the gateway. `more` is appended to the settings of the payload log. Without `more`, there is no
    /// payload log.
    pub(super) async fn start(
        format: &str,
        more: &str,
        backend: SocketAddr,
        collector: SocketAddr,
    ) -> Self {
        let name = format!("canary-{}", backend.port());
        let folder = folder(&name);
        let (file, capture) = (folder.join("tokenweir.yaml"), folder.join("capture.jsonl"));
        let texts = folder.join("content.jsonl");
        let usage = folder.join("usage.jsonl");
        for file in [&capture, &usage, &texts] {
            let _ = fs::remove_file(file);
        }
        let content = if more.is_empty() {
            String::new()
        } else {
            format!(", payloads: {{ file: '{}'{more} }}", texts.display())
        };
        let text = format!(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n\
             backends: [{{ url: 'http://{backend}', api_key: {{ env: BACKEND_KEY }} }}]\n\
             timeouts: {{ response_headers: 20s }}\n\
             tiers: {{ header: x-tier, names: [gold] }}\n\
             admission: {{ tenant_header: x-tenant }}\n\
             refusal_detection: {{ refusal_phrases: ['I cannot help'] }}\n\
             log: {{ level: trace, format: {format}, access_per_second: null{content} }}\n\
             tracing: {{ endpoint: 'http://{collector}', protocol: http/protobuf, ratio: 1.0 }}\n\
             quality: {{ enabled: true }}\n\
             usage_log: {{ file: '{}' }}\n\
             trace_capture: {{ file: '{}' }}\n",
            usage.display(),
            capture.display()
        );
        fs::write(&file, text).unwrap();
        let mut command = process::program();
        command.args(["serve", "--config"]).arg(&file).env_clear();
        command
            .env("RUST_LOG", "trace")
            .env("BACKEND_KEY", secret("backend-key"));
        let program = Self {
            process: GatewayProcess::spawn(command).await,
            capture,
            usage,
            texts,
        };
        // Wait until the gateway has read the model list of the backend.
        wait_until!(program.process.get("/status").await.contains("\"tiny\""));
        program
    }

    /// Waits until the gateway has recorded `count` requests.
    pub(super) async fn wait_for_requests(&self, count: usize) {
        wait_until!({
            let page = self.process.get("/metrics").await;
            sum(&page, "tokenweir_requests_total", &[]) as usize >= count
        });
    }

    /// Stops the program with a signal and waits for its end. Returns its outputs.
    pub(super) async fn stop(&mut self) -> Ended {
        self.process.signal("TERM").await;
        assert!(self.process.ended().await.success());
        Ended {
            access_log: self.process.access_log(),
            log: self.process.log(),
            capture: fs::read(&self.capture).unwrap(),
            usage: fs::read(&self.usage).unwrap(),
            content: fs::read(&self.texts).unwrap_or_default(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(folder) = self.capture.parent() {
            let _ = fs::remove_dir_all(folder);
        }
    }
}
