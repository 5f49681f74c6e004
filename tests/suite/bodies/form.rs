//! Multipart forms that servers can read in different ways. Each class of forms has one kind of difficulty.

use super::Case;
use super::json::{MODELS, choose, mutated};
use fastrand::Rng;

/// A multipart form as values, before it is written as bytes.
#[derive(Clone)]
pub(super) struct Form {
    content_type: String,
    boundary: String,
    /// The header lines and the value of each part of the form.
    parts: Vec<(String, Vec<u8>)>,
    before: String,
    behind: String,
}

type Change = fn(&mut Rng, &mut Form);

/// The classes of forms: the name of each class, and the function that changes a plain form accordingly. The
/// first class changes nothing: its forms are those of common clients.
pub(super) const CLASSES: &[(&str, Change)] = &[
    ("form: plain", |_, _| {}),
    ("form: no model", |rng, form| {
        if rng.bool() {
            form.parts.retain(|(head, _)| !head.contains("model"));
        } else {
            model(form).1 = Vec::new();
        }
    }),
    ("form: two models", |rng, form| {
        let (head, _) = model(form).clone();
        let value = choose(rng, &MODELS).as_bytes().to_vec();
        form.parts.push((head, value));
        rng.shuffle(&mut form.parts);
    }),
    ("form: parameter", |rng, form| {
        let parameters = [
            "NAME=\"model\"",
            "Name=model",
            "name*=utf-8''model",
            "name*=\"utf-8''model\"",
            "name*0=mo; name*1=del",
            "name=\"x\"; name=\"model\"",
            "name=\"model\"; name=\"x\"",
            "name=\"model\"; NAME=\"x\"",
            "name=\"x\"; name*=utf-8''model",
            "name = \"model\"",
            "name=\" model\"",
            "name='model'",
            "name=<model>",
            "name=\"<model>\"",
            "name=\"mod\\el\"",
            "name=\"\\model\"",
            "name=\"model\\\"\"",
            "name=\"\\\"model\\\"\"",
            "name=\"mod%65l\"",
            "name=mod%65l",
            "name=\"=?utf-8?q?model?=\"",
            "name=\"model\"x",
            "name=\"model",
            "name=model\"",
            "name=model;",
            ";name=model",
            "name=\"model\";;",
            "name=\"mod\"\"el\"",
            "name=(c)model",
            "x=\"; name=model \"; name=\"x\"",
            "name=\"x\"; y=\"\\\"; name=\"model\"; z=\"",
            "size=1; name=\"model\"",
            "name=model",
            "name=\"model\"",
        ];
        model(form).0 = format!(
            "Content-Disposition: form-data; {}",
            choose(rng, &parameters)
        );
    }),
    ("form: file name", |rng, form| {
        let names = [
            "filename=\"m\"",
            "filename=\"\"",
            "filename=m",
            "filename*=utf-8''m",
            "FILENAME=\"m\"",
            "filename=\"; name=x \"",
            "filename=\"a\\\"; name=\"x\"",
            "filename=\"a\\\\\"; name=\"x\"",
        ];
        let added = *choose(rng, &names);
        let is_first = rng.bool();
        let at = rng.usize(0..form.parts.len());
        let head = &mut form.parts[at].0;
        *head = if is_first {
            head.replacen("name=", &format!("{added}; name="), 1)
        } else {
            format!("{head}; {added}")
        };
    }),
    ("form: header lines", |rng, form| {
        let lines = [
            "X: \u{1}",
            "X: \u{7f}",
            "X: a\rb",
            "X: a\nContent-Disposition: form-data; name=\"x\"",
            "X : a",
            " X: a",
            "X",
            ": a",
            "X\u{e9}: a",
            "X: \u{e9}",
            "Content-Disposition: form-data; name=\"x\"",
            "content-disposition: form-data; name=\"model\"",
            "Content-Disposition:",
            " name=\"x\"",
            "\tname=\"x\"",
            "Content-Transfer-Encoding: base64",
            "Content-Transfer-Encoding: quoted-printable",
            "Content-Transfer-Encoding: binary",
            "Content-Length: 1",
            "Content-Type: text/plain; charset=utf-16",
            "Content-Type: text/plain; charset=utf-7",
            "Content-Type: text/plain; charset=iso-2022-jp",
            "Content-Type: multipart/mixed; boundary=C",
            "",
        ];
        let line = *choose(rng, &lines);
        let is_first = rng.bool();
        let at = rng.usize(0..form.parts.len());
        let head = &mut form.parts[at].0;
        *head = if is_first {
            format!("{line}\r\n{head}")
        } else {
            format!("{head}\r\n{line}")
        };
    }),
    ("form: disposition", |rng, form| {
        let dispositions = [
            "Form-Data;",
            "attachment;",
            "",
            ";",
            "form-data",
            "form-data ;",
            "form-data;x;",
        ];
        let disposition = *choose(rng, &dispositions);
        let part = model(form);
        part.0 = part.0.replacen("form-data;", disposition, 1);
    }),
    ("form: content type", |rng, form| {
        let boundary = form.boundary.clone();
        form.content_type.clone_from(choose(
            rng,
            &[
                format!("multipart/form-data; boundary={boundary}; boundary=C"),
                format!("multipart/form-data; boundary=C; boundary={boundary}"),
                format!("multipart/form-data; boundary={boundary}; BOUNDARY=C"),
                format!("multipart/form-data; BOUNDARY={boundary}"),
                format!("multipart/form-data; boundary*=utf-8''{boundary}"),
                format!("multipart/form-data; boundary=\"{boundary} \""),
                format!("multipart/form-data; boundary=\"\\{boundary}\""),
                format!("multipart/form-data; boundary = {boundary}"),
                format!("multipart/form-data, boundary={boundary}"),
                format!("multipart/form-data boundary={boundary}"),
                format!("multipart/form-data ; boundary={boundary}"),
                format!("MULTIPART/FORM-DATA; boundary={boundary}"),
                format!("multipart/mixed; boundary={boundary}"),
                format!("application/json; boundary={boundary}"),
                format!("multipart/form-data; charset=utf-16; boundary={boundary}"),
                format!("multipart/form-data; boundary={boundary}; charset=utf-7"),
                format!("multipart/form-data; boundary={boundary}; charset=latin-1"),
                format!("multipart/form-data; boundary={boundary}; charset=UTF-8"),
                format!("multipart/form-data; boundary=\"{boundary}\""),
                "multipart/form-data".to_owned(),
                "multipart/form-data; boundary=".to_owned(),
                String::new(),
            ],
        ));
        if rng.bool() {
            model(form).1 = b"+AHM-ecret-lora".to_vec();
        }
    }),
    ("form: delimiters", |rng, form| {
        let delimiter = format!("--{}", form.boundary);
        let (head, _) = model(form).clone();
        let inner = format!("{head}\r\n\r\nsecret-lora");
        let texts = [
            format!("a\n{delimiter}\r\n{inner}"),
            format!("a\r{delimiter}\r\n{inner}"),
            format!("a\r\n{delimiter} \t\r\n{inner}"),
            format!("a\r\n{delimiter}\n{inner}"),
            format!("a\r\n{delimiter}X\r\n{inner}"),
            format!("a\r\n{delimiter}--X\r\n{inner}"),
            format!("a\r\n{delimiter}--\r\n{delimiter}\r\n{inner}"),
            format!("a\r\n{delimiter}-\r\n{inner}"),
            format!("a\r\n-{delimiter}\r\n{inner}"),
            format!("a{delimiter}\r\n{inner}"),
            format!("{delimiter}\r\n{inner}"),
            format!("a\r\n{delimiter}\r\n{inner}"),
        ];
        let text = choose(rng, &texts).clone().into_bytes();
        let at = rng.usize(0..form.parts.len());
        form.parts[at].1 = text;
    }),
    ("form: around", |rng, form| {
        let delimiter = format!("--{}", form.boundary);
        let texts = [
            "\r\n".to_owned(),
            "\n".to_owned(),
            "\r\n\r\n".to_owned(),
            "text\r\n".to_owned(),
            "\r\n-\r\n".to_owned(),
            format!("{delimiter}--\r\n"),
            format!("{delimiter}\n"),
            format!(
                "\r\n{delimiter}\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nx\r\n{delimiter}--"
            ),
        ];
        let text = choose(rng, &texts).clone();
        if rng.bool() {
            form.before = text;
        } else {
            form.behind = text;
        }
    }),
    ("form: value", |rng, form| {
        let values: [&[u8]; 8] = [
            b"\xff",
            b"\xef\xbb\xbfbase",
            b"\xff\xfes\0e\0c\0",
            b"base\r\n",
            b" base",
            b"base\0",
            b"b\xc3\xa9",
            b"base%20",
        ];
        model(form).1 = choose(rng, &values).to_vec();
    }),
    ("form: cut", |_, _| {}),
    ("form: line feeds", |_, _| {}),
    ("form: urlencoded", |_, _| {}),
    ("form: mutated", |_, _| {}),
];

/// Builds a random form of the class with this index.
pub(super) fn case(rng: &mut Rng, class: usize) -> Case {
    let (class, change) = CLASSES[class];
    let mut form = plain(rng);
    change(rng, &mut form);
    let mut body = form.written();
    match class {
        "form: cut" => body.truncate(rng.usize(0..body.len())),
        "form: line feeds" => {
            let is_half = rng.bool();
            body.retain(|byte| *byte != b'\r' || (is_half && rng.bool()));
        }
        "form: urlencoded" => {
            form.content_type = "application/x-www-form-urlencoded".into();
            let texts = [
                "model=secret-lora",
                "file=x&model=base",
                "mod%65l=secret-lora",
                "model=a;model=b",
            ];
            body = choose(rng, &texts).as_bytes().to_vec();
        }
        "form: mutated" => body = mutated(rng, body),
        _ => {}
    }
    Case {
        class,
        is_form: true,
        content_type: form.content_type.into_bytes(),
        body,
    }
}

/// Builds a form as common clients send it.
fn plain(rng: &mut Rng) -> Form {
    let boundaries = [
        "----WebKitFormBoundaryAaB03x",
        "------------------------d74496d66958873e",
        "b-1",
        "0f8e5a",
    ];
    let boundary = (*choose(rng, &boundaries)).to_owned();
    let quote = *choose(rng, &["", "\""]);
    let mut field = |name: &str, value: &[u8]| {
        let name = if rng.bool() {
            format!("\"{name}\"")
        } else {
            name.to_owned()
        };
        let head = format!("Content-Disposition: form-data; name={name}");
        let head = match rng.usize(0..4) {
            0 => format!("{head}\r\nContent-Type: text/plain; charset=utf-8"),
            1 => format!("Content-Type: text/plain\r\n{head}"),
            _ => head,
        };
        (head, value.to_vec())
    };
    let mut parts = vec![
        field("language", b"en"),
        field("stream", b"true"),
        field("temperature", b"0.5"),
    ];
    let model = field("model", b"");
    parts.push((model.0, choose(rng, &MODELS).as_bytes().to_vec()));
    let names = [
        "filename=\"a b;c.wav\"",
        "filename=a.wav",
        "filename=\"\u{e9}.wav\"",
        "filename=\"a.wav\"; filename*=utf-8''%C3%A9.wav",
    ];
    let name = choose(rng, &names);
    let head =
        format!("Content-Disposition: form-data; name=\"file\"; {name}\r\nContent-Type: audio/wav");
    let sound = (0..rng.usize(0..80)).map(|_| rng.u8(..)).collect();
    parts.push((head, sound));
    rng.shuffle(&mut parts);
    let content_type = format!("multipart/form-data; boundary={quote}{boundary}{quote}");
    let behind = (*choose(rng, &["\r\n", ""])).to_owned();
    Form {
        content_type,
        boundary,
        parts,
        before: String::new(),
        behind,
    }
}

fn model(form: &mut Form) -> &mut (String, Vec<u8>) {
    form.parts
        .iter_mut()
        .find(|(head, _)| head.contains("model"))
        .unwrap()
}

impl Form {
    fn written(&self) -> Vec<u8> {
        let mut body = self.before.clone().into_bytes();
        for (head, value) in &self.parts {
            body.extend_from_slice(format!("--{}\r\n{head}\r\n\r\n", self.boundary).as_bytes());
            body.extend_from_slice(value);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{}--{}", self.boundary, self.behind).as_bytes());
        body
    }
}
