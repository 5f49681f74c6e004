//! The flags of `top`.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_protocol::units;

/// Arguments of `tokenweir top`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct TopArgs {
    /// URL of the admin listener of the gateway.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    #[arg(value_parser = BackendAddress::parse)]
    pub admin: BackendAddress,
    /// File with the admin token; without it, the environment variable is used, see below.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Time between two requests to the gateway, at least 100ms.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_interval)]
    pub interval: Duration,
    /// Time limit for each response.
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    #[arg(value_parser = units::duration::parse)]
    pub timeout: Duration,
    /// Print one frame as text and exit. Without a terminal this is the default.
    #[arg(long)]
    pub once: bool,
}

const HELP: &str = "\
The admin token, if the gateway requires one, comes from --token-file or TOKENWEIR_ADMIN_TOKEN.

Keys: Tab or 1 2 3 select a list, arrows select a row, / filters, s and r sort, d drains a backend, \
Enter shows the routing decision of a request, p pauses, ? lists the keys, q quits. NO_COLOR=1 disables colours.

Exit code: 0 success, 1 no data to show, 2 invalid arguments.

Examples:
  tokenweir top
  tokenweir top --admin https://gateway:9090 --token-file /run/secrets/operator
  tokenweir top --once | head -20";

/// Minimum of `--interval`. It bounds the load that the requests put on the gateway.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = units::duration::parse(text).map_err(|error| error.to_string())?;
    if interval < MIN_INTERVAL {
        Err("expected 100ms or more".to_owned())
    } else {
        Ok(interval)
    }
}
