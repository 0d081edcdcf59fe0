//! A conversation as the text that a model was trained on, by the template of its tokenizer.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, State, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use tacit_core::{Error, Result};
use tacit_io::chat_template;

use super::source::{Source, token_of};

/// The template of a model, and the tokens that it writes.
#[derive(Debug)]
pub(crate) struct Template {
    file: PathBuf,
    source: String,
    /// What a caller does without a template.
    otherwise: &'static str,
    bos_token: Option<String>,
    eos_token: Option<String>,
    /// The time that it tells; without one that of the call.
    now: Option<Timestamp>,
}

/// What somebody said.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) role: String,
    pub(crate) content: String,
}

/// What caches hold of a conversation.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub(crate) struct Conversation {
    /// All that was said, an answer last.
    pub(crate) messages: Vec<Message>,
    /// The token that the answer ended with, which the caches hold, too.
    pub(crate) end: Option<String>,
}

/// What the template can do at most: so many instructions, or 64 times as many bytes, and more for a long prompt. Real ones
/// take some thousands; a file may come from anybody.
const FUEL: u64 = 2_000_000;

impl Message {
    pub(crate) fn new(role: &str, content: impl Into<String>) -> Self {
        Self { role: role.to_owned(), content: content.into() }
    }
}

impl Template {
    /// Reads `chat_template.jinja` or, where there is none, what `tokenizer_config.json` has or a GGUF file.
    ///
    /// Its errors advise to do `otherwise`.
    pub(crate) fn open(from: &Source, otherwise: &'static str) -> Result<Self> {
        let (config, json) = from.config()?;
        let (file, source) = if let Some(file) = from.beside("chat_template.jinja")? {
            let source = fs::read_to_string(&file).map_err(Error::file("read", &file))?;
            (file, source)
        } else {
            let source = chat_template(&json)
                .ok_or_else(|| Error::checkpoint(&config, Some("chat_template"), "there is no template", otherwise))?;
            (config, source.to_owned())
        };
        let token = |key: &str| token_of(&json, key).map(str::to_owned);
        let (bos_token, eos_token) = (token("bos_token"), token("eos_token"));
        Ok(Self { file, source, otherwise, bos_token, eos_token, now: None })
    }

    /// The same template, which from now on tells this time.
    pub(crate) fn at(self, time: SystemTime) -> Self {
        Self { now: Timestamp::try_from(time).ok(), ..self }
    }

    /// What follows the answer of a conversation, up to where the next one begins: nothing of it stands in the caches yet.
    pub(crate) fn go_on(&self, before: &Conversation, user: &str) -> Result<String> {
        let mut messages = before.messages.clone();
        messages.push(Message::new("user", user));
        let mark = self.mark(&messages);
        if let [.., answer, _] = messages.as_mut_slice() {
            answer.content.clone_from(&mark);
        }
        let rest = self.behind(&mark, &messages)?;
        // The caches end with the token, and the template writes it behind every answer.
        Ok(match &before.end {
            Some(end) => rest.trim_start().strip_prefix(end.as_str()).map_or(rest.clone(), str::to_owned),
            None => rest,
        })
    }

    /// What follows the beginning of what the user says, which stands in the caches of another program.
    pub(crate) fn complete(&self, user: &str) -> Result<String> {
        let mark = self.mark(&[Message::new("user", user)]);
        self.behind(&mark, &[Message::new("user", format!("{mark}{user}"))])
    }

    /// Stands for a text whose end is looked for, and is in nothing that the template or anybody says.
    fn mark(&self, messages: &[Message]) -> String {
        let mut mark = "tacitMarksThisPlace".to_owned();
        let said = || messages.iter().map(|message| &message.content).chain([&self.source]);
        while said().any(|text| text.contains(&mark)) {
            mark.push('X');
        }
        mark
    }

    fn behind(&self, mark: &str, messages: &[Message]) -> Result<String> {
        let rendered = self.render(messages)?;
        rendered.split_once(mark).map(|(_, rest)| rest.to_owned()).ok_or_else(|| {
            let reason = "the template leaves out what was said before, so that a cache of it does not go on";
            let help = "begin a new conversation, by `--prompt` and without `--prompt-cache`";
            Error::checkpoint(&self.file, Some("chat_template"), reason, help)
        })
    }

    /// The text of a conversation, up to where the model's answer begins: it holds the tokens that begin a text, too.
    pub(crate) fn render(&self, messages: &[Message]) -> Result<String> {
        self.beginnings(messages, |text| text(messages.len(), true))
    }

    /// Gives `f` what makes the text of the first messages of a conversation, so many of them, to its end or, where it is asked
    /// for, up to where the model's answer begins. The template is read once for all of them.
    pub(crate) fn beginnings<R>(
        &self,
        messages: &[Message],
        f: impl FnOnce(&dyn Fn(usize, bool) -> Result<String>) -> Result<R>,
    ) -> Result<R> {
        // Jinja makes all ends of lines one; those of Windows would be tokens of their own.
        let source = without_generation(&self.source.replace("\r\n", "\n").replace('\r', "\n"));
        let mut environment = Environment::new();
        // As transformers sets it.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| self.refused(&error))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        let said: usize = messages.iter().map(|message| message.content.len()).sum();
        environment.set_fuel(Some(FUEL + 8 * said as u64));
        environment.add_function("raise_exception", |reason: String| -> Outcome<String> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason))
        });
        let now = self.now;
        environment.add_function("strftime_now", move |format: &str| -> Outcome<String> {
            let now = now.map_or_else(Zoned::now, |now| now.to_zoned(TimeZone::UTC));
            let now = jiff::fmt::strtime::format(format, &now);
            now.map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, error.to_string()))
        });
        environment.add_filter("tojson", tojson);
        let message = |message: &Message| context! { role => &message.role, content => &message.content };
        let messages: Vec<Value> = messages.iter().map(message).collect();
        let template = environment.template_from_str(&source).map_err(|error| self.refused(&error))?;
        f(&|count: usize, add_generation_prompt: bool| {
            let rendered = template.render(context! {
                messages => messages[..count].to_vec(),
                // None, which templates ask for, and not left out.
                tools => (),
                documents => (),
                add_generation_prompt => add_generation_prompt,
                bos_token => self.bos_token.as_deref().unwrap_or_default(),
                eos_token => self.eos_token.as_deref().unwrap_or_default(),
            });
            rendered.map_err(|error| self.refused(&error))
        })
    }

    fn refused(&self, error: &minijinja::Error) -> Error {
        let reason = if error.kind() == ErrorKind::OutOfFuel {
            "the template does not come to an end, or makes a text without measure".to_owned()
        } else {
            format!("the template cannot be rendered: {error}")
        };
        let help = format!("{}, or leave the system message out", self.otherwise);
        Error::checkpoint(&self.file, Some("chat_template"), reason, help)
    }
}

type Outcome<T> = std::result::Result<T, minijinja::Error>;

/// The template without the statements by which transformers notes which tokens a model has said.
fn without_generation(source: &str) -> String {
    let (mut text, mut rest) = (String::new(), source);
    while let Some((before, statement)) = rest.split_once("{%") {
        let Some((statement, behind)) = statement.split_once("%}") else { break };
        let statement = match statement.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => statement.replace("generation", "if true"),
            "endgeneration" => statement.replace("endgeneration", "endif"),
            _ => statement.to_owned(),
        };
        for part in [before, "{%", &statement, "%}"] {
            text.push_str(part);
        }
        rest = behind;
    }
    text + rest
}

/// JSON as Python's `json.dumps` writes it, which transformers puts in the place of Jinja's own filter: no character is escaped
/// for HTML.
#[allow(clippy::needless_pass_by_value, reason = "minijinja calls it so")]
fn tojson(state: &State<'_, '_>, value: &Value, options: Kwargs) -> Outcome<String> {
    let failed = |error: serde_json::Error| {
        minijinja::Error::new(ErrorKind::InvalidOperation, "the value is no JSON").with_source(error)
    };
    let indent: Option<usize> = options.get("indent")?;
    // Characters that are not ASCII stay as they are, and that is what is asked for.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut json = Vec::new();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut json, Spaced)).map_err(failed)?,
        Some(indent) => {
            let spaces = vec![b' '; indent.min(16)];
            let formatter = PrettyFormatter::with_indent(&spaces);
            value.serialize(&mut Serializer::with_formatter(&mut json, formatter)).map_err(failed)?;
        }
    }
    state.consume_fuel(json.len() as u64 / 8)?;
    String::from_utf8(json)
        .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, "the value is no text").with_source(error))
}

/// A space behind each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn parsed(source: &str) -> Template {
        let (file, source) = (PathBuf::from("template"), source.to_owned());
        Template { file, source, otherwise: "do without", bos_token: None, eos_token: None, now: None }
    }

    #[test]
    fn what_transformers_gives_a_template_is_there() {
        let rendered = |source: &str| parsed(source).render(&[Message::new("user", "hi")]).expect("renders");
        assert_eq!(
            rendered("{% if tools is not none or documents is not none %}some{% else %}none{% endif %}"),
            "none"
        );
        assert_eq!(rendered("{% if tools is defined %}there{% endif %}"), "there");
        let noted = "{% for m in messages %}a {%- generation -%} {{ m.content }}!{% endgeneration %}{% endfor %}";
        assert_eq!(rendered(noted), "ahi!");
        assert_eq!(rendered("{{ '{%' }} generation"), "{% generation");
    }

    #[test]
    fn ends_of_lines_of_a_template_are_those_of_jinja() {
        let template = parsed("{% for m in messages %}\r\n<{{ m.role }}>\r\n{{ m.content }}\r{% endfor %}\r\n");
        let rendered = template.render(&[Message::new("user", "a\r\nb")]).expect("renders");
        assert_eq!(rendered, "<user>\na\r\nb\n");
    }

    #[test]
    fn beginnings_of_a_conversation_are_rendered_as_conversations() {
        let template = parsed(
            "{% for m in messages %}{% if loop.last %}last {% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}?{% endif %}",
        );
        let said = ["a", "b", "c"].map(|said| Message::new("user", said));
        let whole = |count: usize| template.render(&said[..count]).expect("renders");
        let found =
            template.beginnings(&said, |text| (0..=3).map(|count| text(count, true)).collect::<Result<Vec<_>>>());
        assert_eq!(found.expect("renders"), [0, 1, 2, 3].map(whole));
        let ended = template.beginnings(&said, |text| text(2, false)).expect("renders");
        assert_eq!((whole(2), ended), ("alast b?".to_owned(), "alast b".to_owned()));
    }

    #[test]
    fn a_message_may_have_any_words() {
        let template = parsed("{% for m in messages %}<{{ m.content }}>{% endfor %}");
        let user = "tacitMarksThisPlace, or tacitMarksThisPlaceX";
        let messages = vec![Message::new("user", user), Message::new("assistant", "yes")];
        let before = Conversation { messages, end: None };
        assert_eq!(template.go_on(&before, user).expect("renders"), format!("><{user}>"));
        assert_eq!(template.complete(user).expect("renders"), format!("{user}>"));
    }

    #[test]
    fn a_template_that_does_not_serve_says_what_does() {
        let messages = vec![Message::new("user", "one"), Message::new("assistant", "two")];
        let forgets = parsed("{% for m in messages %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}");
        let forgotten = forgets.go_on(&Conversation { messages: messages.clone(), end: None }, "three");
        let refused = parsed("{{ raise_exception('no') }}").render(&messages);
        let said = [forgotten, refused].map(|outcome| outcome.expect_err("is refused").to_string());
        expect![[r"
            template: chat_template: the template leaves out what was said before, so that a cache of it does not go on
            help: begin a new conversation, by `--prompt` and without `--prompt-cache`
            template: chat_template: the template cannot be rendered: invalid operation: no (in <string>:1)
            help: do without, or leave the system message out"]]
        .assert_eq(&said.join("\n"));
    }
}
