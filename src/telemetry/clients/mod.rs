//! HTTP and gRPC clients of the collectors and judges that the sinks call.

pub(super) mod collector_client;
pub(super) mod json_client;
