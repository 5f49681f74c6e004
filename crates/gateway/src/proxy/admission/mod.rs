//! Admission control: leases a backend with capacity to a request, or queues the request until a backend has
//! capacity.
//!
//! A request for a model that no backend can serve now waits in the same queue, if the model is
//! [expected](crate::backend::routes::RouteTable::is_expected) and `max_backend_wait` allows the wait.
//!
//! If a backend that is not full can serve a request, the request gets a lease at once. If not, the request
//! waits in the admission queue. When a backend gets capacity, the first queued request that this backend can
//! serve gets the lease. There is one exception: if another backend has the prompt of that request in its cache
//! and a later request of the same tenant fits better, see
//! [`AdmissionQueue::select`](tokenweir_routing::admission::AdmissionQueue::select).
//!
//! The gateway takes the lease under the lock of the queue and sends it to the waiting request. So no later
//! request can take the capacity first, a waiting request wakes only for a lease or an error, and the policy
//! picks the backend as late as possible. A client disconnect removes the request from the queue, and releases
//! a lease that was already sent to the request.

mod begun_stream;
mod controller;
mod gate;
mod gated_requests;
mod settings;
mod waiter;

pub use begun_stream::{BegunStream, BegunWait};
pub use controller::AdmissionController;
pub use gate::{AdmissionGate, Entrance, Standing};
pub use settings::AdmissionSettings;
pub use waiter::{LeasedBackend, OwnedRequirements};
