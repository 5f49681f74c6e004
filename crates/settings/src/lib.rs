//! The contract between the configuration and its sections. A section implements [`ConfigSection`], which
//! states its values, rules, reload class, secrets and files. The configuration lists its sections and calls
//! the functions of each.
//!
//! ```text
//! rule        the violation of a rule, and rules for single values
//! secret      the location of a secret, and its value
//! receiver    the URL and the token of a receiver of HTTP requests
//! section     the contract
//! ```

#[macro_use]
mod scalars;
mod rule;
mod secret;

mod receiver;
mod section;

pub use receiver::{ReceiverConfig, ReceiverError, ReceiverUrl};
pub use rule::{
    CheckResult, RuleViolation, at_least_1ms, file_path, header_name, is_label, more_than_0,
    require, sample_share, share, violation_at, violation_of,
};
pub use secret::{
    ConfiguredSecret, Environment, Secret, SecretError, SecretMistake, SecretValue,
    UnreadableSecret, working_folder,
};
pub use section::{
    ConfigSection, KnownBackends, KnownTenants, ListedSecret, OutputFile, ReloadClass, SecretList,
    distinct_files,
};

/// The problem of a key in a core section that only an option reads, in a program without options.
pub const WITHOUT_OPTIONS: &str =
    "this program was built without options: use a package, or build with `--features options`";
