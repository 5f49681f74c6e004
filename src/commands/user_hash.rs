//! `tokenweir user-hash`: prints the hash of a user as in the access log and spans.

use super::{
    EXIT_FAILURE, print_line, report_config_error, report_error, report_problem, variable,
};
use crate::config::{Config, Overrides};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use tokenweir_gateway::proxy::IdentityMode;

/// Arguments of `tokenweir user-hash`.
#[derive(Debug, Clone, Args)]
pub struct UserHashArgs {
    /// The user, as clients name it in a header of `identities.user_headers`, `safety_identifier` or `user`.
    pub user: String,
    /// The configuration of the gateway, with `identities.secret`.
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
}

pub(crate) fn run(args: &UserHashArgs) -> ExitCode {
    let loaded = match Config::load(Some(&args.config), Overrides::default()) {
        Ok(loaded) => loaded,
        Err(error) => return report_config_error(&error),
    };
    let identities = &loaded.config.identities;
    if identities.mode != IdentityMode::Hashed {
        let problem = "users have no hash: identities.mode is not `hashed`";
        return report_problem(problem, EXIT_FAILURE);
    }
    match identities.user_hash(&args.user, variable) {
        Ok(Some(hash)) => print_line(hash),
        Ok(None) => {
            let problem = "identities.secret is not set: each process of the gateway has a random secret, so \
                           the hash of a user is not known outside of it";
            return report_problem(problem, EXIT_FAILURE);
        }
        Err(error) => return report_error(&error),
    }
    ExitCode::SUCCESS
}
