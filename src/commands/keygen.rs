//! Makes a key for a client, and what the file of keys needs of it.

use crate::commands::failed;
use std::process::ExitCode;
use tokenweir_core::access::{KeyDigest, mint};

/// Prints a new key, which is kept nowhere, and its hash.
pub(crate) fn run() -> ExitCode {
    let mut random = [0; 32];
    if let Err(error) = getrandom::fill(&mut random) {
        return failed(&error);
    }
    let key = mint(random);
    #[expect(clippy::print_stdout, reason = "it is what was asked for")]
    {
        println!("key   {key}");
        println!("hash  {}", KeyDigest::of(key.as_bytes()));
    }
    ExitCode::SUCCESS
}
