//! Reads the shape of a model from its `config.json`.

use serde_json::Value;

/// The shape of a model: the sizes of its layers, which determine how much memory it needs.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    /// The architecture, such as `qwen3`.
    pub kind: String,
    /// Number of layers (`num_hidden_layers`), each of which has a KV cache.
    pub layers: u64,
    /// The data that the KV cache stores for each token in each layer.
    pub attention: Attention,
    /// Number of query heads. It must be divisible by the tensor parallel size.
    pub heads: u64,
    /// Bytes per value of weights and activations.
    pub bytes: u64,
    /// The hidden size: number of values of a token between layers.
    pub hidden: u64,
    /// The intermediate size: number of values of a token inside the feed-forward part of a layer.
    pub intermediate: u64,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u64,
    /// Maximum number of tokens of the context. `None`: the file does not state it.
    pub longest: Option<u64>,
    /// Number of parameters, computed by the formula for dense decoders. `None`: the model is not a
    /// dense decoder, or it is quantised.
    pub parameters: Option<u64>,
    /// Properties of the model that make the calculation an estimate.
    pub remarks: Vec<String>,
}

/// The data that the KV cache stores for each token in each layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// A key vector and a value vector for each KV head.
    Heads {
        /// Number of KV heads.
        kv_heads: u64,
        /// Number of values of a key vector or value vector.
        head_dim: u64,
    },
    /// One compressed vector that all heads share (multi-head latent attention).
    Latent {
        /// Number of values of the compressed vector (`kv_lora_rank`).
        rank: u64,
        /// Number of values of the rotary position part (`qk_rope_head_dim`).
        rope: u64,
    },
}

/// Why a `config.json` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelShapeError {
    /// The file is not a JSON object.
    #[error("it is not a JSON object: {0}")]
    Json(String),
    /// A required field is missing or is not a positive whole number.
    #[error("it has no {0}; it must be a whole number above 0")]
    Field(&'static str),
    /// The size of a head is not stated, and cannot be computed because the hidden size is not divisible by
    /// the number of heads.
    #[error("it has no head_dim, and num_attention_heads {1} does not divide hidden_size {0}")]
    Heads(u64, u64),
    /// The data type is not supported.
    #[error("its dtype `{0}` is unknown; supported: float32, float16, bfloat16 and float8 types")]
    Dtype(String),
}

impl ModelShape {
    /// Parses the text of a `config.json`. For a multimodal model, reads the shape of its language model,
    /// which `text_config` describes.
    pub fn read(text: &str) -> Result<Self, ModelShapeError> {
        let config: Value =
            serde_json::from_str(text).map_err(|error| ModelShapeError::Json(error.to_string()))?;
        if !config.is_object() {
            return Err(ModelShapeError::Json("it has another JSON type".to_owned()));
        }
        let text_config = Some(&config["text_config"]).filter(|value| value.is_object());
        let fields = text_config.unwrap_or(&config);
        let number = |name: &'static str| {
            let number = fields[name]
                .as_u64()
                .filter(|number| (1..=1 << 40).contains(number));
            number.ok_or(ModelShapeError::Field(name))
        };
        let layers = number("num_hidden_layers")?;
        let hidden = number("hidden_size")?;
        let heads = number("num_attention_heads")?;
        let attention = read_attention(fields, hidden, heads)?;
        let dtype_keys = ["dtype", "torch_dtype"];
        let text = |name: &str| fields[name].as_str().or(config[name].as_str());
        let dtype = dtype_keys.into_iter().find_map(text);
        let dtype = dtype.unwrap_or("bfloat16").trim_start_matches("torch.");
        let mut model = Self {
            kind: fields["model_type"]
                .as_str()
                .unwrap_or("unknown")
                .to_owned(),
            layers,
            attention,
            heads,
            bytes: dtype_bytes(dtype)?,
            hidden,
            intermediate: number("intermediate_size").unwrap_or(4 * hidden),
            vocabulary: number("vocab_size")?,
            longest: fields["max_position_embeddings"].as_u64(),
            parameters: None,
            remarks: Vec::new(),
        };
        model.add_remarks(&config, fields);
        Ok(model)
    }

    /// Adds a remark for each property that the calculation does not cover, and computes the number
    /// of parameters of a dense decoder.
    fn add_remarks(&mut self, config: &Value, fields: &Value) {
        let has = |name: &str| is_set(fields, name);
        let mut is_dense = true;
        if !config["quantization_config"].is_null() || !fields["quantization_config"].is_null() {
            is_dense = false;
            self.remarks
                .push("the weights are quantised: their size is unknown from the shape".into());
        }
        let experts = ["num_experts", "num_local_experts", "n_routed_experts"];
        if experts.into_iter().any(has) {
            is_dense = false;
            self.remarks
                .push("it has experts: the size of its weights is unknown from the shape".into());
        }
        if config["text_config"].is_object() {
            is_dense = false;
            self.remarks
                .push("it is multimodal: the other parts and their memory are not counted".into());
        }
        self.remarks
            .extend(partial_attention_remark(fields, self.layers));
        if !has("dtype")
            && !has("torch_dtype")
            && config["torch_dtype"].is_null()
            && config["dtype"].is_null()
        {
            self.remarks
                .push("it has no dtype: bfloat16 is assumed".into());
        }
        if is_dense && let Attention::Heads { kv_heads, head_dim } = self.attention {
            let is_tied = fields["tie_word_embeddings"] == true;
            self.parameters = Some(self.dense_parameters(kv_heads, head_dim, is_tied));
        }
    }

    /// Number of parameters of a dense decoder with a gated feed-forward part: the embeddings, and
    /// in each layer the query, output, key and value projections and three feed-forward matrices.
    /// Norms and biases are omitted.
    fn dense_parameters(&self, kv_heads: u64, head_dim: u64, is_tied: bool) -> u64 {
        let embeddings = self.vocabulary * self.hidden * if is_tied { 1 } else { 2 };
        let attention = 2 * self.hidden * head_dim * (self.heads + kv_heads);
        embeddings + self.layers * (attention + 3 * self.hidden * self.intermediate)
    }
}

/// Whether a field is present with a value other than `null` and `false`.
fn is_set(fields: &Value, name: &str) -> bool {
    !fields[name].is_null() && fields[name] != false
}

/// The remark about layers that do not attend to the whole context. `None`: all of the `layers` layers attend
/// to it.
fn partial_attention_remark(fields: &Value, layers: u64) -> Option<String> {
    if let Some(types) = fields["layer_types"].as_array() {
        let full_layers = types
            .iter()
            .filter(|kind| *kind == "full_attention")
            .count() as u64;
        return (full_layers > 0 && full_layers < layers).then(|| {
            format!(
                "{} of {layers} layers do not attend to the whole context: their cache is bounded or \
                 missing, so that more tokens fit than calculated",
                layers - full_layers
            )
        });
    }
    let has_window = is_set(fields, "sliding_window") && fields["use_sliding_window"] != false;
    has_window
        .then(|| "it attends to a sliding window: more tokens may fit than calculated".to_owned())
}

/// Reads the sizes of the attention heads. For multi-head latent attention, reads the size of the compressed
/// vector.
fn read_attention(fields: &Value, hidden: u64, heads: u64) -> Result<Attention, ModelShapeError> {
    let positive = |name: &str| fields[name].as_u64().filter(|number| *number > 0);
    if let Some(rank) = positive("kv_lora_rank") {
        let rope =
            positive("qk_rope_head_dim").ok_or(ModelShapeError::Field("qk_rope_head_dim"))?;
        return Ok(Attention::Latent { rank, rope });
    }
    // A model without the field has as many KV heads as query heads.
    let kv_heads = match &fields["num_key_value_heads"] {
        Value::Null => heads,
        _ => {
            positive("num_key_value_heads").ok_or(ModelShapeError::Field("num_key_value_heads"))?
        }
    };
    let head_dim = match positive("head_dim") {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(ModelShapeError::Heads(hidden, heads)),
    };
    Ok(Attention::Heads { kv_heads, head_dim })
}

/// Bytes per value of a data type.
pub(super) fn dtype_bytes(dtype: &str) -> Result<u64, ModelShapeError> {
    match dtype {
        "float32" => Ok(4),
        "float16" | "bfloat16" | "half" => Ok(2),
        float8 if float8.starts_with("float8") || float8.starts_with("fp8") => Ok(1),
        other => Err(ModelShapeError::Dtype(other.to_owned())),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The `config.json` of Llama 3.1 8B.
    pub(crate) const LLAMA: &str = r#"{"model_type":"llama","num_hidden_layers":32,"hidden_size":4096,
        "num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,
        "vocab_size":128256,"torch_dtype":"bfloat16","max_position_embeddings":131072}"#;

    /// The `config.json` of a model with latent attention and experts.
    pub(crate) fn deepseek() -> String {
        LLAMA.replace(
            "{\"model",
            "{\"kv_lora_rank\":512,\"qk_rope_head_dim\":64,\"n_routed_experts\":256,\"model",
        )
    }

    #[test]
    fn llama_3_1_8b_has_8_billion_parameters() {
        let model = ModelShape::read(LLAMA).unwrap();
        // Llama 3.1 8B has 8,030,261,248 parameters; the calculation leaves out norms.
        assert_eq!(model.parameters, Some(8_029_995_008));
        assert_eq!(
            model.attention,
            Attention::Heads {
                kv_heads: 8,
                head_dim: 128
            }
        );
        assert_eq!((model.bytes, &*model.remarks), (2, &[][..]));
    }

    #[test]
    fn an_incomplete_config_names_the_missing_field() {
        for field in [
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "vocab_size",
        ] {
            let without = LLAMA.replace(field, "another");
            let error = ModelShape::read(&without).unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("it has no {field}; ")),
                "{error}"
            );
        }
        assert_eq!(
            ModelShape::read("[]"),
            Err(ModelShapeError::Json("it has another JSON type".into()))
        );
        assert!(matches!(
            ModelShape::read("{"),
            Err(ModelShapeError::Json(_))
        ));
        let invalid = LLAMA.replace("bfloat16", "int3");
        assert_eq!(
            ModelShape::read(&invalid),
            Err(ModelShapeError::Dtype("int3".to_owned()))
        );
        let invalid = LLAMA.replace("4096", "4097");
        assert_eq!(
            ModelShape::read(&invalid),
            Err(ModelShapeError::Heads(4097, 32))
        );
    }

    #[test]
    fn latent_attention_is_detected() {
        let model = ModelShape::read(&deepseek()).unwrap();
        assert_eq!(
            model.attention,
            Attention::Latent {
                rank: 512,
                rope: 64
            }
        );
        assert_eq!((model.parameters, model.remarks.len()), (None, 1));
    }

    #[test]
    fn multimodal_models_use_their_text_config() {
        let multimodal = format!("{{\"model_type\":\"seeing\",\"text_config\":{LLAMA}}}");
        let model = ModelShape::read(&multimodal).unwrap();
        assert_eq!(
            (model.layers, model.kind.as_str(), model.parameters),
            (32, "llama", None)
        );
    }
}
