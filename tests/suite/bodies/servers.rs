//! The models that servers read in a request body. The servers are Python servers with FastAPI and Starlette,
//! if those packages are installed, and the crates that Rust servers use.

use super::{Case, Reading};
use axum::body::Body;
use axum::extract::{FromRequest, Multipart};
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use futures_util::FutureExt;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/bodies/server.py");

/// Returns the models that the Python packages FastAPI and Starlette read in each body. `None`: these
/// packages are not installed.
pub(super) fn python(cases: &[Case]) -> Option<Vec<[Reading; 2]>> {
    let named = std::env::var("BODIES_PYTHON").ok();
    let program = named.as_deref().unwrap_or("python3");
    // If python-multipart is not installed, this name is `None` in Starlette.
    let modules = [
        "-c",
        "import fastapi; from starlette.formparsers import multipart as m; m.__name__",
    ];
    let check = Command::new(program)
        .args(modules)
        .stderr(Stdio::null())
        .status();
    if !check.is_ok_and(|status| status.success()) {
        assert!(
            named.is_none(),
            "{program} has no fastapi, or no python-multipart"
        );
        return None;
    }
    let mut server = Command::new(program)
        .arg(SERVER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = server.stdin.take().unwrap();
    let output = BufReader::new(server.stdout.take().unwrap());
    let readings: Vec<[Reading; 2]> = std::thread::scope(|scope| {
        scope.spawn(move || {
            for case in cases {
                let kind = if case.is_form { "form" } else { "json" };
                writeln!(input, "{}", json!([kind, case.content_type, case.body])).unwrap();
            }
        });
        output
            .lines()
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect()
    });
    assert!(server.wait().unwrap().success());
    assert_eq!(readings.len(), cases.len());
    Some(readings)
}

/// Returns the model that `serde_json` reads in a JSON body, or axum in a form.
pub(super) fn rust(case: &Case) -> Reading {
    if case.is_form {
        multipart(case)
    } else {
        serde(&case.body)
    }
}

fn serde(body: &[u8]) -> Reading {
    let Ok(Value::Object(members)) = serde_json::from_slice(body) else {
        return None;
    };
    match members.get("model") {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::String(model)) => Some(model.as_bytes().to_vec()),
        Some(_) => None,
    }
}

fn multipart(case: &Case) -> Reading {
    let read = async {
        let request = Request::post("/").header(CONTENT_TYPE, &case.content_type[..]);
        let request = request.body(Body::from(case.body.clone())).ok()?;
        let mut form = Multipart::from_request(request, &()).await.ok()?;
        let mut model = Vec::new();
        while let Some(field) = form.next_field().await.ok()? {
            if field.name() == Some("model") {
                model = field.text().await.ok()?.into_bytes();
            }
        }
        Some(model)
    };
    read.now_or_never().unwrap()
}
