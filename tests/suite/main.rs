//! The integration tests, in one program so that they link once.

mod architecture;
mod proxy;
mod streams;

mod support {
    pub(crate) mod fake;
    pub(crate) mod gateway;
    pub(crate) mod recording;
}
