//! Posts the start and the end of each verdict of the diagnosis to webhooks, as JSON with a text for chat
//! programs.
//!
//! The diagnosis task passes each diagnosis to this module and never waits. Each webhook has a queue of
//! bounded length and a task of its own, so a webhook that does not respond delays nothing else.

pub mod rows;
mod settings;

mod client;

mod verdict_tracker;

mod sender;

mod notifier;

pub use client::WebhookClient;
pub use notifier::WebhookNotifier;
pub use sender::WebhookStatus;
pub use settings::{RetryTimes, WebhookEndpoint, WebhookSettings};
pub use verdict_tracker::{BEGINS_AFTER, ENDS_AFTER};
