//! What an optional part of a backend may do. The pool, a lease and the health checker know this contract, and
//! none of the parts.

/// The state of one optional part of a backend. A part implements the methods that it needs. The calls are
/// static, so a method that a part leaves out costs nothing.
pub(in crate::backend) trait BackendFacet {
    /// Asks the part to make the backend available, whose availability the part can change.
    fn request_activation(&self) {}

    /// Whether the part was asked to make the backend available, and has not done it yet.
    fn is_activation_requested(&self) -> bool {
        false
    }
}
