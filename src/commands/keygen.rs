//! `tokenweir keygen`: creates an API key for a client, and its hash for the keys file.

use super::{EXIT_FAILURE, print_line, report_problem};
use ring::rand::{SecureRandom, SystemRandom};
use std::process::ExitCode;
use tokenweir_request::access::{KeyDigest, mint};

/// Prints a new key and its hash. The key is stored nowhere.
pub(crate) fn run() -> ExitCode {
    let mut random = [0; 32];
    if SystemRandom::new().fill(&mut random).is_err() {
        let problem = "no key was created: the operating system returned no random bytes";
        return report_problem(problem, EXIT_FAILURE);
    }
    let key = mint(random);
    print_line(format_args!("key   {key}"));
    print_line(format_args!(
        "hash  {}",
        KeyDigest::from_key(key.as_bytes())
    ));
    ExitCode::SUCCESS
}
