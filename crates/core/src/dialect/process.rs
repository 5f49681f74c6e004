//! What Prometheus' clients say of any process. Only its start is read, by which a restart is seen
//! even of a replica that had not counted anything.

use super::table::{Dialect, Fold, Row, Source};

pub(super) static DIALECT: Dialect = Dialect::new(None, "process", ROWS);

const ROWS: &[Row] =
    &[Row::number(&["start_time_seconds"], Fold::Greatest, Source::Value, |load| {
        &mut load.started
    })];
