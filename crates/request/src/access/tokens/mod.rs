//! Tokens: a second source of principals besides the key file. An issuer vouches for the claims of a token, and
//! an option checks them. The granted rights become an [`ApiKey`](super::ApiKey) of a tenant of the key file.

mod grant;
mod subjects;

pub use grant::{RefusedToken, TokenGrant, TokenRefusal};
pub(super) use subjects::SubjectLimiters;
