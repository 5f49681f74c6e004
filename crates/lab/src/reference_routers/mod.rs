//! Reimplementations of other routers, from their documentation and behaviour, as a reference for
//! experiments. They have the input of the originals: unprocessed scraped load, and the prompts
//! that they sent themselves.

mod dynamo;
mod llm_d;
mod prefix_index;
mod radix_tree;
mod token_load;

pub(super) use dynamo::DynamoRouter;
pub(super) use llm_d::LlmDRouter;
pub(super) use radix_tree::{RadixTreeRouter, RadixTreeVariant};
pub(super) use token_load::{TokenLoadRouter, TokenLoadRule};
