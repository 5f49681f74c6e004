//! The gateways, simulated backends and scripted backends of the gateway's own test suite.

#[path = "../../../tests/suite/support/chunked_body.rs"]
pub(crate) mod chunked_body;
#[path = "../../../tests/suite/support/request_reader.rs"]
pub(crate) mod request_reader;
#[path = "../../../tests/suite/support/scripted_backend.rs"]
pub(crate) mod scripted_backend;
#[path = "../../../tests/suite/support/simulated_fleet.rs"]
pub(crate) mod simulated_fleet;
#[path = "../../../tests/suite/support/tcp_server.rs"]
pub(crate) mod tcp_server;
#[path = "../../../tests/suite/support/test_gateway.rs"]
pub(crate) mod test_gateway;
