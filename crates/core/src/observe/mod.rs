//! Watching an answer as it passes, without touching it. The observer is a pure state machine;
//! the exchange carries it through the life of a request and reports once; the body forwards
//! frames and shows them to its exchange. What is open now can be looked at while it is open.

mod body;
mod cut;
mod exchange;
mod lane;
mod leash;
mod live;
mod member;
mod observer;
mod on_record;
mod open;
mod outcome;
mod pulse;
mod strip;
mod terms;

pub use body::{Begun, BodyError, ObservedBody};
pub use exchange::{Exchange, Sink};
pub use leash::{Leash, Leashed, Leashes};
pub use live::{Live, Replica, Settings, StallLimits};
pub use observer::Observer;
pub use open::{Glance, OpenStream, Phase, Subject};
pub use terms::{OnTruncation, StreamRules, Terms};
