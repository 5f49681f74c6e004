//! Prints what is installed around the gateway, or writes it to files.

use super::{failed, wrong};
use crate::cli::{Generate, What};
use crate::config::{Config, Overrides};
use crate::operations::{self, Artifact, Surroundings};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

pub(super) fn run(generate: &Generate) -> ExitCode {
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
    let print = |artifact: &Artifact| Ok((artifact.path().to_owned(), artifact.print(&around)?));
    let files: Result<_, operations::Error> = artifacts.iter().map(print).collect();
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
    let usual = Surroundings::of(config);
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
