//! `tokenweir top`.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::units;

/// `tokenweir top`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct Top {
    /// The admin port of the gateway.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    #[arg(value_parser = Address::parse, env = "TOKENWEIR_TOP_ADMIN")]
    pub admin: Address,
    /// A file with its admin token; without one, a variable has it: see below.
    #[arg(long, value_name = "FILE", env = "TOKENWEIR_TOP_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// How often it is asked.
    #[arg(long, value_name = "DURATION", default_value = "1s", env = "TOKENWEIR_TOP_INTERVAL")]
    #[arg(value_parser = interval)]
    pub interval: Duration,
    /// Longest wait for an answer.
    #[arg(long, value_name = "DURATION", default_value = "5s", env = "TOKENWEIR_TOP_TIMEOUT")]
    #[arg(value_parser = units::duration::parse)]
    pub timeout: Duration,
    /// Print what it is now, as text, and end. So it does where there is no terminal.
    #[arg(long, env = "TOKENWEIR_TOP_ONCE")]
    pub once: bool,
}

const HELP: &str = "\
The token of the admin port, if it wants one, is taken from TOKENWEIR_ADMIN_TOKEN or --token-file.

Keys: Tab or 1 2 3 another list, arrows walk, / filter, s and r sort, d drain a replica, Enter why
a request went where it went, p pause, ? keys, q quit. NO_COLOR=1 takes the colours away.

Exit code: 0, 1 there is nothing to show, 2 it cannot be run as asked.

Examples:
  tokenweir top
  tokenweir top --admin https://gateway:9090 --token-file /run/secrets/operator
  tokenweir top --once | head -20";

/// Asking more often than this would be work, not looking.
const LEAST: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = units::duration::parse(text).map_err(|error| error.to_string())?;
    if interval < LEAST { Err("expected 100ms or more".to_owned()) } else { Ok(interval) }
}
