//! `tokenweir generate`.

use super::shell::Guide;
use clap::{Args, ValueEnum, builder::PossibleValue};
use std::path::PathBuf;
use tokenweir_operations::Artifact;

/// `tokenweir generate`.
#[derive(Debug, Clone, Args)]
pub struct Generate {
    /// What to print.
    #[arg(value_enum)]
    pub what: What,
    /// The configuration of the gateway: its admin port, and its replicas.
    #[arg(long, value_name = "FILE", env = "TOKENWEIR_GENERATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Write files below this folder instead of printing; manual pages and completions where
    /// they are looked for below a prefix such as /usr.
    #[arg(long, value_name = "DIR", env = "TOKENWEIR_GENERATE_OUT")]
    #[arg(required_if_eq("what", "all"))]
    pub out: Option<PathBuf>,
    /// The admin ports of the gateways. That of the configuration, if not given.
    #[arg(long, value_name = "HOST:PORT", env = "TOKENWEIR_GENERATE_GATEWAY")]
    #[arg(value_delimiter = ',')]
    pub gateway: Vec<String>,
    /// The URL of Prometheus.
    #[arg(help = "Prometheus. [default: http://prometheus:9090]")]
    #[arg(long, value_name = "URL", env = "TOKENWEIR_GENERATE_PROMETHEUS")]
    pub prometheus: Option<String>,
    /// Alertmanager. [default: alertmanager:9093]
    #[arg(long, value_name = "HOST:PORT", env = "TOKENWEIR_GENERATE_ALERTMANAGER")]
    pub alertmanager: Option<String>,
    /// Where notifications go.
    #[arg(help = "Where notifications go, plus /page or /ticket. [default: http://webhook:8080]")]
    #[arg(long, value_name = "URL", env = "TOKENWEIR_GENERATE_WEBHOOK")]
    pub webhook: Option<String>,
    /// The URL of Jaeger's query service.
    #[arg(help = "Jaeger's query service. [default: http://jaeger:16686]")]
    #[arg(long, value_name = "URL", env = "TOKENWEIR_GENERATE_JAEGER")]
    pub jaeger: Option<String>,
    /// Where you serve the page of runbooks: alerts link to it. [default: docs/runbooks.md]
    #[arg(long, value_name = "URL", env = "TOKENWEIR_GENERATE_RUNBOOKS")]
    pub runbooks: Option<String>,
}

/// What is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Each artifact.
    All,
    /// This one.
    One(Artifact),
    /// What a shell and `man` are told of the command line.
    Guide(Guide),
}

impl ValueEnum for What {
    fn value_variants<'a>() -> &'a [Self] {
        const ARTIFACTS: usize = Artifact::ALL.len();
        const ALL: [What; 1 + ARTIFACTS + Guide::ALL.len()] = {
            let mut all = [What::All; 1 + ARTIFACTS + Guide::ALL.len()];
            let mut place = 0;
            while place < ARTIFACTS {
                all[1 + place] = What::One(Artifact::ALL[place]);
                place += 1;
            }
            let mut place = 0;
            while place < Guide::ALL.len() {
                all[1 + ARTIFACTS + place] = What::Guide(Guide::ALL[place]);
                place += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::All => Some(
                PossibleValue::new("all")
                    .help("All that follow down to `metrics-reference`; needs --out"),
            ),
            Self::One(artifact) => artifact.to_possible_value(),
            Self::Guide(guide) => guide.to_possible_value(),
        }
    }
}
