//! `tokenweir keygen`: creates an API key for a client, and its hash for the keys file.

use crate::commands::report_error;
use std::process::ExitCode;
use tokenweir_core::access::{KeyDigest, mint};

/// Prints a new key and its hash. The key is not stored anywhere.
pub(crate) fn run() -> ExitCode {
    let mut random = [0; 32];
    if let Err(error) = getrandom::fill(&mut random) {
        return report_error(&error);
    }
    let key = mint(random);
    #[expect(clippy::print_stdout, reason = "standard output is the result of the command")]
    {
        println!("key   {key}");
        println!("hash  {}", KeyDigest::from_key(key.as_bytes()));
    }
    ExitCode::SUCCESS
}
