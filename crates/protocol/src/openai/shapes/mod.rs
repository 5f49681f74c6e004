//! The response schemas of the APIs.

mod schema;

mod audio;
mod chat;
mod common_response;
mod completions;
mod messages;
mod responses;

use super::api::Api;
pub(super) use responses::{REFUSAL_EVENT_TYPE, TEXT_EVENT_TYPES};
pub(super) use schema::{ERROR_EVENT_TYPE, EventOutput, HEARTBEATS, ResponseField, ResponseSchema};

/// How to parse the responses of an API.
pub(super) fn response_schema(api: Api) -> &'static ResponseSchema {
    match api {
        Api::Chat => &chat::SHAPE,
        Api::Completions => &completions::SHAPE,
        Api::Responses => &responses::SHAPE,
        Api::Messages => &messages::SHAPE,
        Api::Audio => &audio::SHAPE,
        Api::Embeddings | Api::Other | Api::Http => &common_response::SHAPE,
    }
}
