//! Tokens: a second source of principals beside the key file. An issuer vouches for the claims of a token, an
//! option checks them, and what they grant becomes an [`ApiKey`](super::ApiKey) of a tenant of the key file.

mod grant;
mod subjects;

pub use grant::{RefusedToken, TokenGrant, TokenRefusal};
pub(super) use subjects::SubjectLimiters;
