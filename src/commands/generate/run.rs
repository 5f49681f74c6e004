//! Prints what is installed around the gateway, or writes it to files.

use super::args::{Generate, What};
use crate::commands::{failed, wrong};
use crate::config::schema;
use crate::config::{Config, Overrides};
use crate::telemetry::catalog;
use crate::telemetry::metric::{Kind, Known, Label};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use tokenweir_core::openai::Api;
use tokenweir_operations::catalogue::{self, Catalogue, Metric};
use tokenweir_operations::{Artifact, Gateway, Surroundings};

pub(crate) fn run(generate: &Generate) -> ExitCode {
    let files = match &generate.what {
        What::All => installed(generate, &Artifact::ALL),
        What::One(artifact) => installed(generate, std::slice::from_ref(artifact)),
        What::Guide(guide) => guide.files().map_err(|error| failed(&error)),
    };
    let files = match files {
        Ok(files) => files,
        Err(code) => return code,
    };
    for (path, text) in files {
        let written = match &generate.out {
            Some(folder) => write(&folder.join(path), &text),
            None => io::stdout().write_all(text.as_bytes()),
        };
        if let Err(error) = written {
            return failed(&error);
        }
    }
    ExitCode::SUCCESS
}

/// The files that are installed around the gateway: where each is kept, and its text.
fn installed(
    generate: &Generate,
    artifacts: &[Artifact],
) -> Result<Vec<(String, String)>, ExitCode> {
    let loaded = Config::load(generate.config.as_deref(), Overrides::default());
    let config = loaded.map_err(|error| wrong(&error))?.config;
    if artifacts.contains(&Artifact::Prometheus) && !config.discovery.is_empty() {
        eprintln!(
            "warning: the scrape configuration has no backends that `discovery` finds; scrape them \
             with a label `backend` that equals the gateway's, or panels and alerts that read the \
             engines' own metrics stay empty"
        );
    }
    let around = surroundings(generate, &config);
    let gateway = tables();
    let print =
        |artifact: &Artifact| Ok((artifact.path().to_owned(), artifact.print(&gateway, &around)?));
    let files: Result<_, tokenweir_operations::Error> = artifacts.iter().map(print).collect();
    files.map_err(|error| failed(&error))
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, text)?;
    eprintln!("wrote {}", file.display());
    Ok(())
}

/// What the configuration says, and what was said besides.
fn surroundings(generate: &Generate, config: &Config) -> Surroundings {
    let usual = usual_surroundings(config);
    let given = |given: &Option<String>, usual: &String| given.as_ref().unwrap_or(usual).clone();
    let gateways = [&generate.gateway, &usual.gateways].into_iter().find(|them| !them.is_empty());
    Surroundings {
        gateways: gateways.cloned().unwrap_or_default(),
        prometheus: given(&generate.prometheus, &usual.prometheus),
        alertmanager: given(&generate.alertmanager, &usual.alertmanager),
        webhook: given(&generate.webhook, &usual.webhook),
        jaeger: given(&generate.jaeger, &usual.jaeger),
        runbooks: given(&generate.runbooks, &usual.runbooks),
        ..usual
    }
}

/// The gateway and the backends of a configuration, and the other services by the names that they
/// have in `docker/compose.yml`.
pub fn usual_surroundings(config: &Config) -> Surroundings {
    let host = if config.admin.ip().is_unspecified() {
        "gateway".to_owned()
    } else {
        config.admin.ip().to_string()
    };
    let backends = config.backends.iter().map(|backend| {
        let (host, port) = backend.url.host_and_port();
        (backend.id().as_str().to_owned(), format!("{host}:{port}"))
    });
    Surroundings::new(format!("{host}:{}", config.admin.port()), backends.collect())
}

/// The tables of this gateway that generated files describe.
pub fn tables() -> Gateway {
    Gateway { metrics: metrics(), schema: schema() }
}

/// The metrics of this gateway.
pub fn metrics() -> Catalogue {
    let label = |label: &Label| catalogue::Label { name: label.name(), values: values(*label) };
    let metric = |row: &'static crate::telemetry::metric::Row| Metric {
        name: row.name,
        help: row.help,
        kind: match row.kind {
            Kind::Counter => catalogue::Kind::Counter,
            Kind::Gauge => catalogue::Kind::Gauge,
            Kind::Histogram(bounds) => catalogue::Kind::Histogram(bounds),
        },
        labels: row.labels.iter().map(label).collect(),
    };
    Catalogue(catalog::rows().map(metric).collect())
}

/// The values of a label, in Markdown.
fn values(label: Label) -> String {
    match label {
        Label::Model => {
            "a model that the configuration names, one of the first others that replicas list \
             (`metrics.max_models`), or `_other`"
                .into()
        }
        Label::Backend => "the name of a replica".into(),
        Label::Tier => "a tier of the configuration, `_other`, or empty".into(),
        Label::Tenant => "a tenant of the file of keys, or `_other`".into(),
        Label::Slo => "an objective of the configuration".into(),
        Label::Class => "a tier of `admission.classes`, or `default`".into(),
        Label::ErrorType => {
            "empty on success and for a client that left, else what failed, or `_OTHER`".into()
        }
        Label::GenAiOperation => {
            let mut operations = Api::ALL.map(|api| format!("`{}`", api.operation())).to_vec();
            operations.sort_unstable();
            operations.dedup();
            format!(
                "{}; all but `chat` have their series from the first request on",
                operations.join(" ")
            )
        }
        Label::Version => "the version of the gateway".into(),
        closed => {
            let values = closed.values(&Known::default());
            let named = values.iter().map(|value| format!("`{value}`"));
            named.collect::<Vec<_>>().join(" ")
        }
    }
}
