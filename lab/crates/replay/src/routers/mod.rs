//! The routers of an experiment: the policies of the gateway, and for comparison, reimplementations of other
//! routers from their documentation and behaviour. The reimplementations get the same input as the originals:
//! unprocessed scraped loads, and the prompts that they sent themselves.

mod dynamo;
mod llm_d;
mod llm_d_predicted;
mod online_regression;
mod prefix_index;
mod radix_tree;
mod router;
mod routing_input;
mod rules;
mod session_gate;
mod smetric;
mod token_load;

pub use router::{DEFAULT_SCRAPE_INTERVAL, ReferenceRouter, Router, RouterKind};
pub use routing_input::RoutingInput;
pub(crate) use session_gate::{SessionGate, SessionTurn, Turn, session_turns};
