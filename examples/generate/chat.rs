//! A conversation as the text that a model was trained on, by the template of its tokenizer.

use std::fs;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use serde_json::Value as Json;
use tacit::{Error, Result};

/// The template of a folder, and the tokens that it writes.
#[derive(Debug)]
pub(crate) struct Template {
    file: PathBuf,
    source: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl Template {
    /// Reads `chat_template.jinja` or, where there is none, what `tokenizer_config.json` has.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let config = folder.join("tokenizer_config.json");
        let json = if config.is_file() {
            let text = fs::read(&config).map_err(Error::file("read", &config))?;
            serde_json::from_slice::<Json>(&text).map_err(|error| {
                Error::checkpoint(&config, None, error.to_string(), "fetch the tokenizer of this model again")
            })?
        } else {
            Json::Null
        };
        let file = folder.join("chat_template.jinja");
        let (file, source) = if file.is_file() {
            let source = fs::read_to_string(&file).map_err(Error::file("read", &file))?;
            (file, source)
        } else {
            let source = template(&json["chat_template"]).ok_or_else(|| {
                let help = "leave `--chat` out: the model continues texts";
                Error::checkpoint(&config, Some("chat_template"), "there is no template", help)
            })?;
            (config, source.to_owned())
        };
        let token = |key: &str| {
            let token = &json[key];
            token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
        };
        Ok(Self { file, source, bos_token: token("bos_token"), eos_token: token("eos_token") })
    }

    /// The text of a conversation, up to where the model's answer begins: it holds the tokens that begin a text, too.
    pub(crate) fn render(&self, system: Option<&str>, user: &str) -> Result<String> {
        let mut environment = Environment::new();
        // As transformers sets it.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| self.refused(&error))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function(
            "raise_exception",
            |reason: String| -> std::result::Result<String, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason))
            },
        );
        let message = |role: &str, content: &str| context! { role => role, content => content };
        let messages: Vec<Value> =
            system.map(|system| message("system", system)).into_iter().chain([message("user", user)]).collect();
        let rendered = environment.render_str(
            &self.source,
            context! {
                messages => messages,
                add_generation_prompt => true,
                bos_token => self.bos_token.as_deref().unwrap_or_default(),
                eos_token => self.eos_token.as_deref().unwrap_or_default(),
            },
        );
        rendered.map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &minijinja::Error) -> Error {
        let reason = format!("the template cannot be rendered: {error}");
        Error::checkpoint(&self.file, Some("chat_template"), reason, "leave `--chat` or `--system` out")
    }
}

/// The template, or the one that is called the default.
fn template(json: &Json) -> Option<&str> {
    let default = |named: &&Json| named["name"] == "default";
    json.as_str().or_else(|| json.as_array()?.iter().find(default)?["template"].as_str())
}
