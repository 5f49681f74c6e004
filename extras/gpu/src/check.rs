//! Checks the GPU exporters for `tokenweir doctor`.

use serde_json::Value;
use tokenweir_api::Remark;

/// The remarks about the GPU exporters. `status`: the document of `GET /status`.
pub fn check(status: &Value) -> Vec<Remark> {
    let exporters = status["gpu_exporters"].as_array().into_iter().flatten();
    exporters.flat_map(exporter_remarks).collect()
}

/// The remarks about a GPU exporter that the gateway cannot read, or that lacks values.
fn exporter_remarks(exporter: &Value) -> Vec<Remark> {
    let name = exporter["exporter"].as_str().unwrap_or("a GPU exporter");
    let mut remarks = Vec::new();
    if let Some(error) = exporter["scrape_error"].as_str() {
        let remark = Remark::warning(format!("the GPU exporter {name} cannot be read: {error}"));
        let reason = "The last values of its GPUs age; verdicts about them end.";
        let remedy = format!("curl http://{name}/metrics from the host of the gateway");
        remarks.push(remark.because(reason).remedy(remedy));
    }
    let texts = |key: &str| -> Vec<&str> {
        exporter[key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    };
    let unassigned = texts("unassigned");
    if !unassigned.is_empty() {
        let observation = format!(
            "no backend owns the GPUs {} of {name}",
            unassigned.join(", ")
        );
        let reason = if exporter["is_ambiguous"] == true {
            "Several backends have the host of the exporter."
        } else {
            "No backend has the pod of the GPU, or the host of the exporter."
        };
        let remark = Remark::note(observation).because(reason);
        remarks.push(remark.remedy("name its backends and their GPUs in gpu.exporters"));
    }
    for missing in exporter["missing"].as_array().into_iter().flatten() {
        let text = |key: &str| missing[key].as_str().unwrap_or_default();
        let remark = Remark::note(format!(
            "{name} does not export {} of its GPUs",
            text("signal")
        ));
        let remedy = format!(
            "add {} to the counters file of dcgm-exporter",
            text("fields")
        );
        remarks.push(
            remark
                .because(format!("{}.", text("impact")))
                .remedy(remedy),
        );
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokenweir_api::FindingSeverity;

    #[test]
    fn faulty_exporters_and_unassigned_gpus_are_reported() {
        let remarks = |error: Option<&str>, unassigned: &[&str], missing: &[Value]| {
            check(&json!({
                "gpu_exporters": [{
                    "exporter": "h:9400", "scrape_error": error, "unassigned": unassigned,
                    "is_ambiguous": true, "missing": missing,
                }],
            }))
        };
        let has_remedy = |remarks: &[Remark], words: &str| {
            let remedy = remarks[0].remedy.as_deref();
            remedy.is_some_and(|remedy| remedy.contains(words))
        };
        assert_eq!(remarks(None, &[], &[]), []);
        let failed = remarks(Some("timeout"), &[], &[]);
        assert_eq!(failed[0].severity, FindingSeverity::Warning);
        let unassigned = remarks(None, &["0", "1"], &[]);
        assert!(has_remedy(&unassigned, "gpu.exporters"), "{unassigned:?}");
        let signal = json!({ "signal": "throttling", "fields": "FIELD", "impact": "x" });
        let missing = remarks(None, &[], &[signal]);
        assert!(has_remedy(&missing, "FIELD"), "{missing:?}");
    }
}
