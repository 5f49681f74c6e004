//! Splits the requests for one model name over versions: other models, each with a weight.
//!
//! The version is a function of the conversation and the weights, so all gateways choose the same one without a
//! table. A change of the weights moves as few conversations as possible.
//!
//! The guard of a split compares the results of a version with those of the other versions. A version that is
//! significantly worse gets no more requests, and the other versions continue its conversations. At most half
//! of the weights is taken out, because the rest may be unable to serve more.

mod evidence;
mod verdict;

mod split;

mod note;

mod model_splits;
mod option;

pub mod rows;

pub use model_splits::{ModelSplits, SplitSettings};
