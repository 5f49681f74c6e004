//! The flags of the commands that query or change a running gateway.

use crate::commands::admin_client::AdminClient;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_protocol::units;

/// Declares the arguments of one command: its own, and those of the connection to the gateway. Each
/// command needs its own struct, because the environment variables of its flags contain its name.
macro_rules! operator_args {
    ($(#[$doc:meta])* $name:ident, $command:literal, $help:ident, { $($field:tt)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Args)]
        #[command(after_help = $help)]
        pub struct $name {
            $($field)*
            /// URL of the admin listener of the gateway.
            #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
            #[arg(value_parser = BackendAddress::parse)]
            #[arg(env = concat!("TOKENWEIR_", $command, "_ADMIN"))]
            pub admin: BackendAddress,
            /// File with the admin token; without it, the environment variable is used, see below.
            #[arg(long, value_name = "FILE", env = concat!("TOKENWEIR_", $command, "_TOKEN_FILE"))]
            pub token_file: Option<PathBuf>,
            /// Time limit for the response.
            #[arg(long, value_name = "DURATION", default_value = "10s")]
            #[arg(env = concat!("TOKENWEIR_", $command, "_TIMEOUT"))]
            #[arg(value_parser = units::duration::parse)]
            pub timeout: Duration,
            /// Print one JSON object.
            #[arg(long, env = concat!("TOKENWEIR_", $command, "_JSON"))]
            pub json: bool,
        }

        impl $name {
            /// The client for the admin listener of these arguments. Fails if the token cannot be read.
            pub(super) fn client(&self) -> Result<AdminClient, String> {
                let client = AdminClient::new(&self.admin, self.token_file.clone(), self.timeout);
                client.map_err(|error| error.to_string())
            }
        }
    };
}

operator_args! {
    /// Arguments of `tokenweir status`.
    StatusArgs, "STATUS", STATUS_HELP, {}
}

operator_args! {
    /// Arguments of `tokenweir explain`.
    ExplainArgs, "EXPLAIN", HELP, {
        /// The request id: the `x-request-id` of the response.
        #[arg(value_name = "ID")]
        pub request_id: String,
    }
}

operator_args! {
    /// Arguments of `tokenweir drain`.
    DrainArgs, "DRAIN", HELP, {
        /// The name of the backend, as `tokenweir status` shows it.
        pub backend: String,
        /// Why the backend is drained, for the log, the page and `status`; up to 200 characters.
        #[arg(long, value_name = "TEXT", env = "TOKENWEIR_DRAIN_REASON")]
        pub reason: Option<String>,
        /// Duration of the drain, such as 30m. [default: until it is ended]
        #[arg(long = "for", value_name = "DURATION", env = "TOKENWEIR_DRAIN_FOR")]
        #[arg(value_parser = units::duration::parse)]
        pub duration: Option<Duration>,
        /// Move open streams to other backends, if they can be continued.
        #[arg(long, env = "TOKENWEIR_DRAIN_MIGRATE")]
        pub migrate: bool,
    }
}

operator_args! {
    /// Arguments of `tokenweir undrain`.
    UndrainArgs, "UNDRAIN", HELP, {
        /// The name of the backend, as `tokenweir status` shows it.
        pub backend: String,
    }
}

operator_args! {
    /// Arguments of `tokenweir reload`.
    ReloadArgs, "RELOAD", HELP, {}
}

const HELP: &str = "\
The admin token, if the gateway requires one, comes from --token-file or TOKENWEIR_ADMIN_TOKEN.

Exit code: 0 success, 1 the gateway refused or gave no answer, 2 invalid arguments.";

const STATUS_HELP: &str = "\
The admin token, if the gateway requires one, comes from --token-file or TOKENWEIR_ADMIN_TOKEN.

Exit code: 0 the gateway serves its clients (ready, degraded), 1 many clients are harmed (failing, \
refusing, slow, down) or it shuts down, 2 invalid arguments, 3 it gave no answer.";
