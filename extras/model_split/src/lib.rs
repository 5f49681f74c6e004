//! Splits the requests for one model name over versions: other models, each with a weight.
//!
//! The version is a function of the conversation and the weights, so all gateways choose alike and no table is
//! kept. A change of the weights moves the fewest conversations that it can.
//!
//! The guard of a split compares the results of a version with those of the other versions. A version that is
//! significantly worse gets no more requests, and its conversations go on at the other versions. At most half of
//! the weights is taken out: the rest has not shown that it can carry more.

mod evidence;
mod verdict;

mod split;

mod note;

mod model_splits;
mod option;

pub mod rows;

pub use model_splits::{ModelSplits, SplitSettings};
