//! Prints the files that a deployment of the gateway needs, or writes them to a folder.

use super::args::{GenerateArgs, GenerateTarget};
use crate::app::metrics::metric_rows;
use crate::app::options;
use crate::commands::{report_config_error, report_error};
use crate::config::schema;
use crate::config::{Config, Overrides};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokenweir_gateway::metric::MetricLabel;
use tokenweir_gateway::telemetry::metrics_registry::{MetricDetail, MetricsLevel};
use tokenweir_gateway::telemetry::otel::Semconv;
use tokenweir_operations::catalogue::{self, MetricCatalogue, MetricDescription};
use tokenweir_operations::{Artifact, DeploymentEndpoints, GatewayTables};

/// The error for a generated file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be written", file.display())]
struct UnwritableFile {
    file: PathBuf,
    source: io::Error,
}

/// Runs `tokenweir generate`. `command` is the definition of the command line, for manual pages and
/// completions.
pub(crate) fn run(generate: &GenerateArgs, command: &clap::Command) -> ExitCode {
    let files = match &generate.what {
        GenerateTarget::All => render_files(generate, &Artifact::ALL),
        GenerateTarget::One(artifact) => render_files(generate, std::slice::from_ref(artifact)),
        GenerateTarget::Shell(artifact) => artifact
            .files(command)
            .map_err(|error| report_error(&error)),
    };
    let files = match files {
        Ok(files) => files,
        Err(code) => return code,
    };
    for (path, text) in files {
        let written = match &generate.out {
            Some(folder) => {
                let file = folder.join(path);
                write_file(&file, &text).map_err(|source| UnwritableFile { file, source })
            }
            None => io::stdout()
                .write_all(text.as_bytes())
                .map_err(|source| UnwritableFile {
                    file: "standard output".into(),
                    source,
                }),
        };
        if let Err(error) = written {
            return report_error(&error);
        }
    }
    ExitCode::SUCCESS
}

/// Renders artifacts. Returns the path and the text of each artifact. The error is the exit code.
fn render_files(
    generate: &GenerateArgs,
    artifacts: &[Artifact],
) -> Result<Vec<(String, String)>, ExitCode> {
    let loaded = Config::load(generate.config.as_deref(), Overrides::default());
    let config = loaded.map_err(|error| report_config_error(&error))?.config;
    let endpoints = build_endpoints(generate, &config);
    let gateway = tables();
    let render = |artifact: &Artifact| {
        Ok((
            artifact.as_str().to_owned(),
            artifact.print(&gateway, &endpoints)?,
        ))
    };
    let files: Result<_, tokenweir_operations::RenderError> =
        artifacts.iter().map(render).collect();
    files.map_err(|error| report_error(&error))
}

fn write_file(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, text)?;
    eprintln!("wrote {}", file.display());
    Ok(())
}

/// Collects the addresses of the gateways, the backends and the other services of the deployment. Flags take
/// precedence over the configuration and defaults.
fn build_endpoints(generate: &GenerateArgs, config: &Config) -> DeploymentEndpoints {
    let defaults = default_surroundings(config);
    let flag_or_default =
        |flag: &Option<String>, default: &String| flag.as_ref().unwrap_or(default).clone();
    let gateways = [&generate.gateway, &defaults.gateways];
    let gateways = gateways.into_iter().find(|addresses| !addresses.is_empty());
    DeploymentEndpoints {
        gateways: gateways.cloned().unwrap_or_default(),
        prometheus: flag_or_default(&generate.prometheus, &defaults.prometheus),
        alertmanager: flag_or_default(&generate.alertmanager, &defaults.alertmanager),
        webhook: flag_or_default(&generate.webhook, &defaults.webhook),
        jaeger: flag_or_default(&generate.jaeger, &defaults.jaeger),
        runbooks: match (&generate.runbooks, generate.gateway.first()) {
            (Some(url), _) => url.clone(),
            (None, Some(gateway)) => format!("{}://{gateway}/runbooks", admin_scheme(config)),
            (None, None) => defaults.runbooks.clone(),
        },
        span_metrics: generate.spans.clone(),
        gpus: generate.gpus.clone(),
        ..defaults
    }
}

/// Returns the addresses of the gateway and the backends of a configuration. The other services of
/// the deployment have the host names of `docker/compose.yml`.
pub fn default_surroundings(config: &Config) -> DeploymentEndpoints {
    let host = if config.admin.ip().is_unspecified() {
        "gateway".to_owned()
    } else {
        config.admin.ip().to_string()
    };
    let backends = config.backends.iter().map(|backend| {
        let (host, port) = backend.url.host_and_port();
        (backend.id().as_str().to_owned(), format!("{host}:{port}"))
    });
    let admin = format!("{}://{host}:{}", admin_scheme(config), config.admin.port());
    DeploymentEndpoints::new(&admin, backends.collect())
}

const fn admin_scheme(config: &Config) -> &'static str {
    if config.tls.admin { "https" } else { "http" }
}

/// Returns the metrics and the configuration schema of this gateway, from which files are
/// generated.
pub fn tables() -> GatewayTables {
    GatewayTables {
        metrics: metrics(),
        schema: schema(),
        rules: options::diagnosis_rules().collect(),
    }
}

/// Returns the names, labels and help texts of all metrics of this gateway.
pub fn metrics() -> MetricCatalogue {
    let label = |label: &MetricLabel| catalogue::LabelDescription {
        name: label.name,
        values: label.description(),
    };
    // A metric that the default version of the semantic conventions lacks is described as in the latest
    // version.
    let detail = |level: MetricsLevel, row| match level.detail(row, Semconv::default()) {
        MetricDetail::Omitted => level.detail(row, Semconv::Latest),
        detail => detail,
    };
    let metric = |row: &'static tokenweir_gateway::metric::MetricDescriptor| MetricDescription {
        name: row.name,
        help: row.help,
        kind: row.kind.as_str(),
        labels: row.labels.iter().map(label).collect(),
        level: {
            let has = |level: &MetricsLevel| detail(*level, row) != MetricDetail::Omitted;
            MetricsLevel::ALL
                .into_iter()
                .find(has)
                .map_or("", MetricsLevel::as_str)
        },
        is_folded: detail(MetricsLevel::default(), row) == MetricDetail::WithoutBackend,
    };
    MetricCatalogue(metric_rows().map(metric).collect())
}
