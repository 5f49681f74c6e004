//! What a model's `config.json` says of its size.

use serde_json::Value;

/// The shape of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Its architecture, such as `qwen3`.
    pub kind: String,
    /// Layers that attend, and so have a KV cache that grows.
    pub layers: u64,
    /// How a token is kept in each of them.
    pub attention: Attention,
    /// Heads that ask; a tensor parallel size divides them.
    pub heads: u64,
    /// Bytes of a value of weights and activations.
    pub bytes: u64,
    /// What `dtype` says.
    pub dtype: String,
    /// Width of a token between layers.
    pub hidden: u64,
    /// Width inside a layer.
    pub intermediate: u64,
    /// Tokens of the vocabulary.
    pub vocabulary: u64,
    /// The longest context, if it is told.
    pub longest: Option<u64>,
    /// Parameters by the usual formula of dense decoders. `None`: it is none, or it is quantised.
    pub parameters: Option<u64>,
    /// What makes the arithmetic an estimate.
    pub remarks: Vec<String>,
}

/// What a layer keeps of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// A key and a value for each head that is asked.
    Heads {
        /// Heads that are asked.
        kv_heads: u64,
        /// Width of one.
        head_dim: u64,
    },
    /// One compressed vector for all heads (multi-head latent attention).
    Latent {
        /// Its rank.
        rank: u64,
        /// Width of the part that knows the position.
        rope: u64,
    },
}

/// Why a `config.json` is not enough.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// Not JSON, or no object.
    #[error("it is not a JSON object: {0}")]
    Json(String),
    /// A field is missing, or has another form.
    #[error("it has no {0}; it must be a whole number above 0")]
    Field(&'static str),
    /// Heads cannot be counted.
    #[error("it has no head_dim, and hidden_size {0} does not divide by num_attention_heads {1}")]
    Heads(u64, u64),
    /// Another number format.
    #[error("its dtype `{0}` is unknown; known are float32, float16, bfloat16 and float8 ones")]
    Dtype(String),
}

impl Model {
    /// Reads a `config.json`. What describes the text model of one that also sees or hears is in
    /// its `text_config`.
    pub fn read(text: &str) -> Result<Self, ModelError> {
        let config: Value =
            serde_json::from_str(text).map_err(|error| ModelError::Json(error.to_string()))?;
        if !config.is_object() {
            return Err(ModelError::Json("something else stands there".to_owned()));
        }
        let inner = Some(&config["text_config"]).filter(|inner| inner.is_object());
        let of = inner.unwrap_or(&config);
        let number = |name: &'static str| {
            let number = of[name].as_u64().filter(|number| (1..=1 << 40).contains(number));
            number.ok_or(ModelError::Field(name))
        };
        let (layers, hidden, heads) =
            (number("num_hidden_layers")?, number("hidden_size")?, number("num_attention_heads")?);
        let attention = attention(of, hidden, heads)?;
        let dtype = ["dtype", "torch_dtype"];
        let dtype = dtype.into_iter().find_map(|name| of[name].as_str().or(config[name].as_str()));
        let dtype = dtype.unwrap_or("bfloat16").trim_start_matches("torch.").to_owned();
        let mut model = Self {
            kind: of["model_type"].as_str().unwrap_or("unknown").to_owned(),
            layers,
            attention,
            heads,
            bytes: bytes_of(&dtype)?,
            dtype,
            hidden,
            intermediate: number("intermediate_size").unwrap_or(4 * hidden),
            vocabulary: number("vocab_size")?,
            longest: of["max_position_embeddings"].as_u64(),
            parameters: None,
            remarks: Vec::new(),
        };
        model.look_closer(&config, of);
        Ok(model)
    }

    /// What is not a dense decoder with full attention is said.
    fn look_closer(&mut self, config: &Value, of: &Value) {
        let is_there = |name: &str| !of[name].is_null() && of[name] != false;
        let mut is_dense = true;
        if !config["quantization_config"].is_null() || !of["quantization_config"].is_null() {
            is_dense = false;
            self.remarks
                .push("the weights are quantised: their size is not known from the shape".into());
        }
        let experts = ["num_experts", "num_local_experts", "n_routed_experts"];
        if experts.into_iter().any(is_there) {
            is_dense = false;
            self.remarks
                .push("it has experts: the size of its weights is not known from the shape".into());
        }
        if config["text_config"].is_object() {
            is_dense = false;
            self.remarks
                .push("it also sees or hears: that part and its memory are not counted".into());
        }
        if let Some(types) = of["layer_types"].as_array() {
            let full = types.iter().filter(|kind| *kind == "full_attention").count() as u64;
            if full > 0 && full < self.layers {
                self.remarks.push(format!(
                    "{} of {} layers do not attend to everything: their cache is bounded or none, \
                     so there is room for more tokens than this says",
                    self.layers - full,
                    self.layers
                ));
            }
        } else if is_there("sliding_window") && of["use_sliding_window"] != false {
            self.remarks.push(
                "it attends to a sliding window: there may be room for more tokens than this says"
                    .into(),
            );
        }
        if !is_there("dtype")
            && !is_there("torch_dtype")
            && config["torch_dtype"].is_null()
            && config["dtype"].is_null()
        {
            self.remarks.push("no dtype is told: bfloat16 is assumed".into());
        }
        if is_dense && let Attention::Heads { kv_heads, head_dim } = self.attention {
            self.parameters =
                Some(self.dense(kv_heads, head_dim, of["tie_word_embeddings"] == true));
        }
    }

    /// Parameters of a dense decoder with a gated feed-forward part: embeddings, and in each layer
    /// queries and output, keys and values, and three matrices. Norms and biases are left out.
    fn dense(&self, kv_heads: u64, head_dim: u64, is_tied: bool) -> u64 {
        let embeddings = self.vocabulary * self.hidden * if is_tied { 1 } else { 2 };
        let attention = 2 * self.hidden * head_dim * (self.heads + kv_heads);
        embeddings + self.layers * (attention + 3 * self.hidden * self.intermediate)
    }
}

fn attention(of: &Value, hidden: u64, heads: u64) -> Result<Attention, ModelError> {
    let positive = |name: &str| of[name].as_u64().filter(|number| *number > 0);
    if let Some(rank) = positive("kv_lora_rank") {
        let rope = positive("qk_rope_head_dim").ok_or(ModelError::Field("qk_rope_head_dim"))?;
        return Ok(Attention::Latent { rank, rope });
    }
    // A model without the field has as many of them as heads that ask.
    let kv_heads = match &of["num_key_value_heads"] {
        Value::Null => heads,
        _ => positive("num_key_value_heads").ok_or(ModelError::Field("num_key_value_heads"))?,
    };
    let head_dim = match positive("head_dim") {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(ModelError::Heads(hidden, heads)),
    };
    Ok(Attention::Heads { kv_heads, head_dim })
}

/// Bytes of a value.
pub(super) fn bytes_of(dtype: &str) -> Result<u64, ModelError> {
    match dtype {
        "float32" => Ok(4),
        "float16" | "bfloat16" | "half" => Ok(2),
        float8 if float8.starts_with("float8") || float8.starts_with("fp8") => Ok(1),
        other => Err(ModelError::Dtype(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{"model_type":"llama","num_hidden_layers":32,"hidden_size":4096,
        "num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,
        "vocab_size":128256,"torch_dtype":"bfloat16","max_position_embeddings":131072}"#;

    #[test]
    fn a_llama_of_8_billion_parameters_has_about_as_many() {
        let model = Model::read(LLAMA).unwrap();
        // Llama 3.1 8B has 8,030,261,248; norms are left out here.
        assert_eq!(model.parameters, Some(8_029_995_008));
        assert_eq!(model.attention, Attention::Heads { kv_heads: 8, head_dim: 128 });
        assert_eq!((model.bytes, &*model.remarks), (2, &[][..]));
    }

    #[test]
    fn a_field_that_is_missing_is_named() {
        for field in ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"] {
            let without = LLAMA.replace(field, "another");
            let error = Model::read(&without).unwrap_err();
            assert!(error.to_string().starts_with(&format!("it has no {field}; ")), "{error}");
        }
        assert_eq!(Model::read("[]"), Err(ModelError::Json("something else stands there".into())));
        assert!(matches!(Model::read("{"), Err(ModelError::Json(_))));
        let odd = LLAMA.replace("bfloat16", "int3");
        assert_eq!(Model::read(&odd), Err(ModelError::Dtype("int3".to_owned())));
        let odd = LLAMA.replace("4096", "4097");
        assert_eq!(Model::read(&odd), Err(ModelError::Heads(4097, 32)));
    }

    #[test]
    fn latent_attention_is_told_apart() {
        let deepseek = LLAMA.replace(
            "{\"model",
            "{\"kv_lora_rank\":512,\"qk_rope_head_dim\":64,\"n_routed_experts\":256,\"model",
        );
        let model = Model::read(&deepseek).unwrap();
        assert_eq!(model.attention, Attention::Latent { rank: 512, rope: 64 });
        assert_eq!((model.parameters, model.remarks.len()), (None, 1));
    }

    #[test]
    fn the_text_part_of_a_model_that_sees_is_what_counts() {
        let seeing = format!("{{\"model_type\":\"seeing\",\"text_config\":{LLAMA}}}");
        let model = Model::read(&seeing).unwrap();
        assert_eq!((model.layers, model.kind.as_str(), model.parameters), (32, "llama", None));
    }
}
