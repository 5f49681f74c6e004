//! Fuzz target of the configuration. Any text either is a valid configuration or gives an error with a
//! message. Parsing a valid configuration twice gives equal results.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use tokenweir::config::{Config, Overrides};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let file = Path::new("fuzz.yaml");
    match Config::parse(text, file, Overrides::default()) {
        Ok(loaded) => {
            assert!(loaded.view().is_object());
            let again = Config::parse(text, file, Overrides::default());
            assert_eq!(again.map(|again| again.config).ok(), Some(loaded.config));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
