//! Posts the start and the end of each verdict of the diagnosis to webhooks, as JSON with a text for chat
//! programs.
//!
//! The diagnosis task passes each diagnosis to this module and never waits. Each webhook has a queue of
//! bounded length and a task of its own, so a webhook that does not respond delays nothing else.

mod check;
mod option;
pub mod rows;
mod settings;

mod section;

mod verdict_tracker;

mod sender;

mod notifier;

pub use check::check;
pub use notifier::TASK;
pub use notifier::WebhookNotifier;
pub use section::WebhooksConfig;
pub use sender::WebhookStatus;
pub use settings::{RetryTimes, WebhookSettings};
pub use verdict_tracker::{BEGINS_AFTER, ENDS_AFTER};
