//! The flags of `generate`.

use super::shell::ShellArtifact;
use clap::{Args, ValueEnum, builder::PossibleValue};
use std::path::PathBuf;
use std::sync::LazyLock;
use tokenweir_operations::Artifact;

/// Arguments of `tokenweir generate`.
#[derive(Debug, Clone, Args)]
pub struct GenerateArgs {
    /// The artifact to print.
    #[arg(value_enum)]
    pub what: GenerateTarget,
    /// Configuration file of the gateway: for its admin listener and its backends.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write files below this folder instead of printing. Manual pages and completions get the
    /// paths that they have below a prefix such as /usr.
    #[arg(long, value_name = "DIR", required_if_eq("what", "all"))]
    pub out: Option<PathBuf>,
    /// Admin listeners of the gateways. [default: that of the configuration]
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub gateway: Vec<String>,
    /// URL of Prometheus.
    #[arg(help = "URL of Prometheus. [default: http://prometheus:9090]")]
    #[arg(long, value_name = "URL")]
    pub prometheus: Option<String>,
    /// Address of Alertmanager. [default: alertmanager:9093]
    #[arg(long, value_name = "HOST:PORT")]
    pub alertmanager: Option<String>,
    /// URL of the webhook for notifications.
    #[arg(help = "Webhook, to which /page or /ticket is appended. [default: http://webhook:8080]")]
    #[arg(long, value_name = "URL")]
    pub webhook: Option<String>,
    /// URL of Jaeger's query service.
    #[arg(
        help = "URL of Jaeger's query service; the collector sends spans to port 4317 of its \
                  host. [default: http://jaeger:16686]"
    )]
    #[arg(long, value_name = "URL")]
    pub jaeger: Option<String>,
    /// Address at which the collector exports metrics of spans. [default: Prometheus does not
    /// scrape it]
    #[arg(long, value_name = "HOST:PORT")]
    pub spans: Option<String>,
    /// DNS name and port of the exporters of GPU metrics, such as dcgm-exporter:9400. [default:
    /// Prometheus does not scrape them]
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_host_and_port)]
    pub gpus: Option<(String, u16)>,
    /// URL of the runbooks; alerts link to it. [default: /runbooks of the first gateway]
    #[arg(long, value_name = "URL")]
    pub runbooks: Option<String>,
}

fn parse_host_and_port(text: &str) -> Result<(String, u16), &'static str> {
    let parsed = text
        .rsplit_once(':')
        .and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let parsed = parsed.filter(|(host, _)| !host.is_empty());
    parsed
        .map(|(host, port)| (host.to_owned(), port))
        .ok_or("expected a host and a port")
}

/// The selection of artifacts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerateTarget {
    /// All artifacts.
    All,
    /// One artifact.
    One(Artifact),
    /// Manual pages or shell completions.
    Shell(ShellArtifact),
}

impl ValueEnum for GenerateTarget {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<GenerateTarget>> = LazyLock::new(|| {
            let artifacts = Artifact::ALL.into_iter().map(GenerateTarget::One);
            let shell = ShellArtifact::value_variants()
                .iter()
                .copied()
                .map(GenerateTarget::Shell);
            [GenerateTarget::All]
                .into_iter()
                .chain(artifacts)
                .chain(shell)
                .collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::All => {
                Some(PossibleValue::new("all").help("All artifacts down to `metrics`; needs --out"))
            }
            Self::One(artifact) => artifact.to_possible_value(),
            Self::Shell(artifact) => artifact.to_possible_value(),
        }
    }
}
