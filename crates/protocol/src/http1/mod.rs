//! Parsing and encoding of HTTP/1.1 messages without I/O (RFC 9112): requests of clients, responses
//! of backends, and their bodies.
//!
//! The parser state of a connection that waits for data takes only a few machine words. Body data is not
//! buffered. The crate httparse parses the heads.

mod fields;

mod body_decoder;
mod request_encoding;
mod response_encoding;

pub mod content_encoding;
mod request_head;
mod response_head;
pub mod websocket;

mod head_scanner;
#[cfg(test)]
mod tests;

pub use body_decoder::BodyDecoder;
pub use fields::{Http1ParseError, parse_digits};
pub use head_scanner::HeadScanner;
pub use request_encoding::{RequestFraming, encode_request_head};
pub use request_head::{HeadLimits, RequestHead, parse_request_head};
pub use response_encoding::{
    CHUNK_END, CONTINUE_RESPONSE, LAST_CHUNK, RequestSummary, ResponseFraming, encode_chunk_size,
    encode_response_head,
};
pub use response_head::{ResponseHead, has_blank_line, parse_response_head};
