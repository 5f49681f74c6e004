//! KV events of vLLM, which show the blocks in the prefix cache of an engine.
//!
//! An engine publishes an event for each block that it stores or removes. [`zmtp`] receives the events,
//! [`decoder`] reads them, and [`residency`] keeps the contents of one cache. [`correlation`] learns which
//! blocks contain which text, from the session ids that the gateway sets on its requests. No tokenizer is
//! needed. With the feature `publisher`, `encoder` writes events and [`zmtp`] publishes them.
//!
//! Only [`zmtp`] opens sockets. The modules are declared in layers: a module imports only from modules above it
//! in this file.

mod key_hash;

pub mod decoder;

#[cfg(feature = "publisher")]
pub mod encoder;

pub mod residency;

pub mod correlation;

pub mod zmtp;
