//! Prints what is installed around the gateway, or writes it to files.

use super::{failed, wrong};
use crate::cli::{Generate, What};
use crate::config::{Config, Overrides};
use crate::operations::{Artifact, Surroundings};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

pub(super) fn run(generate: &Generate) -> ExitCode {
    let loaded = match Config::load(generate.config.as_deref(), Overrides::default()) {
        Ok(loaded) => loaded,
        Err(error) => return wrong(&error),
    };
    let around = surroundings(generate, &loaded.config);
    let artifacts = match &generate.what {
        What::All => Artifact::ALL.as_slice(),
        What::One(artifact) => std::slice::from_ref(artifact),
    };
    for artifact in artifacts {
        let text = match artifact.print(&around) {
            Ok(text) => text,
            Err(error) => return failed(&error),
        };
        let written = match &generate.out {
            Some(folder) => write(&folder.join(artifact.path()), &text),
            None => io::stdout().write_all(text.as_bytes()),
        };
        if let Err(error) = written {
            return failed(&error);
        }
    }
    ExitCode::SUCCESS
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
