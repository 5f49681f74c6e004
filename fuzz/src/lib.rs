//! Code that the fuzz targets share: splitting of inputs, and an independent JSON parser.

mod cut;
mod tree;

pub use cut::cut;
pub use tree::Tree;
