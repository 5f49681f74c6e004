//! The program `tokenweir`: an LLM gateway for vLLM, and the commands around it. The crate `tokenweir_gateway`
//! contains the code that processes requests.
//!
//! The modules are declared in layers. A module uses only modules of its own layer and of earlier layers, which
//! a test enforces.

// Layer 1: the list of options, and the configuration.
mod options;

pub mod config;

// Layer 2: what operators read and change in the running gateway.
pub mod admin;

// Layer 3: the composition root.
pub mod app;

// Layer 4: the command line.
pub mod cli;
pub mod commands;
