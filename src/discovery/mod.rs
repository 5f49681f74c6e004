//! Where replicas are found while the gateway runs. A source tells all that it has found, again
//! whenever that is another list than before. What it cannot find out changes nothing: the last good
//! list holds while a name server is down, answers nothing, or a file is gone.

pub mod dns;
pub mod file;
pub mod name;
