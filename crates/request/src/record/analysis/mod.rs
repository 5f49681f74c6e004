//! Derived figures that combine several parts of a record: the phases of a request, the parts of the wait for
//! its first output, and the cause of a slow request.

mod phases;

mod first_output_wait;

mod slowness;

mod content;
mod failures;
mod labels;
mod response_end;
mod waste;

pub use content::ToolAnswer;
pub use response_end::ResponseEnd;
pub use waste::WastedTokens;
