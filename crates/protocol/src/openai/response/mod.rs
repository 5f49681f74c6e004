//! The content of responses: one [`Delta`](super::Delta) for each event.

mod phrase_matcher;
mod text_sample;
mod usage;

mod event_template;
mod response_summary;

mod choice_delta;
mod delta_builder;
mod error_event;

mod response_reader;

pub use phrase_matcher::PhraseMatcher;
pub use response_reader::ResponseReader;
pub use text_sample::TextSample;
pub use usage::{MAX_TOKEN_COUNT, read_usage};
