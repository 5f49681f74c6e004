//! Other routers, restated from their documentation and behaviour, so that an experiment can be
//! held against them. They see what they would see there: scraped numbers as they are, and their
//! own record of what they sent.

mod llm_d;
mod radix_tree;
mod sent;

pub(super) use llm_d::LlmD;
pub(super) use radix_tree::RadixTree;
