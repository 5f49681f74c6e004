//! The flags of the commands that query or change a running gateway.

use crate::commands::admin_client::AdminClient;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_protocol::units;

/// The flags of the connection to a running gateway, and of the output.
#[derive(Debug, Clone, Args)]
pub struct OperatorArgs {
    /// URL of the admin listener of the gateway.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    #[arg(value_parser = BackendAddress::parse)]
    pub admin: BackendAddress,
    /// File with the admin token; without it, the environment variable is used, see below.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Time limit for the response.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = units::duration::parse)]
    pub timeout: Duration,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

impl OperatorArgs {
    /// Creates the client for the admin listener that these arguments name. Fails if the token
    /// cannot be read.
    pub(super) fn client(&self) -> Result<AdminClient, String> {
        let client = AdminClient::new(&self.admin, self.token_file.clone(), self.timeout);
        client.map_err(|error| error.to_string())
    }
}

/// Arguments of `tokenweir explain`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct ExplainArgs {
    /// The request id: the `x-request-id` of the response. `-`: standard input has lines of the access log in JSON.
    #[arg(value_name = "ID")]
    pub request_id: String,
    /// Search the request in this file, an access log in JSON. The gateway is not asked.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// The connection and the output.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `tokenweir drain`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct DrainArgs {
    /// The name of the backend, as `tokenweir status` shows it.
    pub backend: String,
    /// Why the backend is drained, for the log, the page and `status`; up to 200 characters.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Duration of the drain, such as 30m. [default: until it is ended]
    #[arg(long = "for", value_name = "DURATION", value_parser = units::duration::parse)]
    pub duration: Option<Duration>,
    /// Move open streams to other backends, if they can be continued.
    #[arg(long)]
    pub migrate: bool,
    /// The connection and the output.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Arguments of `tokenweir undrain`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct UndrainArgs {
    /// The name of the backend, as `tokenweir status` shows it.
    pub backend: String,
    /// The connection and the output.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// The text after the help of each of these commands except `status`.
pub(crate) const HELP: &str = "\
The admin token, if the gateway requires one, comes from --token-file or TOKENWEIR_ADMIN_TOKEN.

Exit code: 0 success, 1 the gateway refused or gave no answer, 2 invalid arguments.";

/// The text after the help of `status`.
pub(crate) const STATUS_HELP: &str = "\
The admin token, if the gateway requires one, comes from --token-file or TOKENWEIR_ADMIN_TOKEN.

Exit code: 0 the gateway serves its clients (ready, changed, degraded), 1 many clients are harmed (failing, \
refusing, slow, down, or more than 5 % without a usable answer through no fault of theirs) or it shuts \
down, 2 invalid arguments, 3 it gave no answer.";
