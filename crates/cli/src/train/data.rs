//! A file of texts to learn, a line of JSON each, as tokens.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::iter;
use std::ops::Range;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use tacit_core::{Error, Result, printable};
use tacit_io::json::Json;
use tacit_models::Sample;
use tokenizers::Tokenizer;

use crate::decoding::source::{Source, token_of};
use crate::decoding::template::{Message, Template};

/// What makes tokens of texts.
pub(super) struct Reader {
    source: Source,
    tokenizer: Tokenizer,
    /// Read when the first conversation comes.
    template: Option<Template>,
    /// When the first file was changed last: a template that tells the time tells this one, so that a run that goes on tomorrow
    /// reads what it read today.
    changed: Option<SystemTime>,
    /// The token that ends a text, if there is one.
    end: Option<u32>,
    /// How many tokens the model knows.
    words: u32,
}

/// A text, and the parts of it that are learned.
struct Text {
    content: String,
    learned: Vec<Range<usize>>,
    /// Whether it has the tokens that begin and end a text already, as a template writes them.
    is_complete: bool,
}

impl Text {
    /// A text of which this many bytes are given, and the others learned.
    fn new(content: String, given: usize) -> Self {
        Self { learned: iter::once(given..content.len()).collect(), content, is_complete: false }
    }
}

const HELP: &str = "write {\"text\": ..}, {\"prompt\": .., \"completion\": ..} or {\"messages\": [{\"role\": .., \"content\": ..}, ..]}";

const WITHOUT_TEMPLATE: &str = "give prompts and completions in place of messages";

impl Reader {
    /// The reader for a model that knows this of text, whose texts end with `end` where its tokenizer does not say how they do.
    pub(super) fn new(source: Source, end: Option<u32>, words: u32) -> Result<Self> {
        let tokenizer = source.tokenizer()?;
        let (_, config) = source.config()?;
        let end_of_text = token_of(&config, "eos_token").and_then(|text| tokenizer.token_to_id(text));
        Ok(Self { source, tokenizer, template: None, changed: None, end: end_of_text.or(end), words })
    }

    /// The samples of a file, in its order.
    pub(super) fn read(&mut self, file: &Path) -> Result<Vec<Sample>> {
        let opened = File::open(file).map_err(Error::file("open", file))?;
        self.changed = self.changed.or_else(|| opened.metadata().and_then(|metadata| metadata.modified()).ok());
        let mut samples = Vec::new();
        for (line, number) in BufReader::new(opened).lines().zip(1..) {
            let line = line.map_err(Error::file("read", file))?;
            // The mark that editors on Windows put before a text.
            let line = if number == 1 { line.trim_start_matches('\u{feff}') } else { &line };
            if line.trim().is_empty() {
                continue;
            }
            samples.extend(self.samples(line).map_err(|error| {
                let place = printable::name(&file.to_string_lossy()).into_owned();
                Error::invalid(
                    format!("{place}:{number}: {}", error.clause()),
                    error.help().unwrap_or_else(|| HELP.to_owned()),
                )
            })?);
        }
        Ok(samples)
    }

    /// The samples of a line: one, or one for each turn of the assistant.
    fn samples(&mut self, line: &str) -> Result<Vec<Sample>> {
        // JSON that is refused has a key twice: which of its two texts is meant, nobody knows.
        let row: Json = serde_json::from_str(line)
            .map_err(|error| if error.is_data() { wrong(error) } else { wrong(format!("it is no JSON: {error}")) })?;
        if !matches!(row, Json::Object(_)) {
            return Err(wrong("it is no JSON object"));
        }
        let texts = match (row.get("text"), row.get("prompt"), row.get("completion"), row.get("messages")) {
            (Some(text), None, None, None) => {
                vec![Text::new(string(text, "text")?.to_owned(), 0)]
            }
            (None, Some(prompt), Some(completion), None) => {
                let prompt = string(prompt, "prompt")?;
                vec![Text::new(format!("{prompt}{}", string(completion, "completion")?), prompt.len())]
            }
            (None, None, None, Some(messages)) => {
                let messages = conversation(messages)?;
                if self.template.is_none() {
                    let time = self.changed.unwrap_or(UNIX_EPOCH);
                    self.template = Some(Template::open(&self.source, WITHOUT_TEMPLATE)?.at(time));
                }
                self.template.as_ref().map_or(Ok(Vec::new()), |template| answers(template, &messages))?
            }
            (None, None, None, None) => {
                return Err(wrong("it has neither text, nor a prompt and a completion, nor messages"));
            }
            (None, Some(_), None, None) => return Err(wrong("it has a prompt and no completion")),
            (None, None, Some(_), None) => return Err(wrong("it has a completion and no prompt")),
            _ => return Err(wrong("it has more than one of text, prompt and completion, and messages")),
        };
        texts.iter().map(|text| self.sample(text)).collect()
    }

    fn sample(&self, text: &Text) -> Result<Sample> {
        let encoding = self.tokenizer.encode(text.content.as_str(), !text.is_complete);
        let encoding = encoding.map_err(|error| {
            Error::invalid(format!("the tokenizer cannot read the text: {error}"), "give text that its vocabulary has")
        })?;
        let mut sample = Sample::default();
        let places = encoding.get_ids().iter().zip(encoding.get_offsets()).zip(encoding.get_special_tokens_mask());
        for ((&token, &(begin, end)), &special) in places {
            if token >= self.words {
                let message = format!("token {token} is not among the {} that the model knows", self.words);
                return Err(Error::invalid(message, "take the tokenizer of this model"));
            }
            // What the tokenizer puts before a text or behind it stands nowhere in it. Some tokenizers leave spaces out of the
            // places of tokens, so that nothing remains of some: these end where they do.
            let added = special == 1 && begin == end;
            let learned = |part: &Range<usize>| begin >= part.start && end > part.start && end <= part.end;
            sample.tokens.push(token);
            sample.learned.push(!added && text.learned.iter().any(learned));
        }
        if let Some(end) = self.end.filter(|_| !text.is_complete) {
            // The model is to know where to stop; a tokenizer may have put it there already.
            if sample.tokens.last() == Some(&end) {
                sample.learned.pop();
            } else {
                sample.tokens.push(end);
            }
            sample.learned.push(true);
        }
        Ok(sample)
    }
}

/// The text of a conversation, of which the answers are learned; or one text for each answer, where the template writes an answer
/// otherwise once something follows it.
fn answers(template: &Template, messages: &[Message]) -> Result<Vec<Text>> {
    let turns = messages.iter().enumerate().filter(|(_, message)| message.role == "assistant");
    let mut texts = template.beginnings(messages, |beginning| {
        let text = |(number, _): (usize, &Message)| -> Result<Text> {
            let (prompt, text) = (beginning(number, true)?, beginning(number + 1, false)?);
            if !text.starts_with(&prompt) {
                let message = "the template does not write an answer behind what asks for it";
                return Err(Error::invalid(message, WITHOUT_TEMPLATE));
            }
            // Ends of lines are the template's: the answer ends with the token before them.
            let text = text.trim_end();
            Ok(Text { is_complete: true, ..Text::new(text.to_owned(), prompt.len().min(text.len())) })
        };
        turns.map(text).collect::<Result<Vec<_>>>()
    })?;
    let Some(mut last) = texts.pop() else { return Err(wrong("no message is of the role assistant")) };
    if texts.iter().all(|text| last.content.starts_with(&text.content)) {
        last.learned.extend(texts.into_iter().flat_map(|text| text.learned));
        return Ok(vec![last]);
    }
    texts.push(last);
    Ok(texts)
}

fn conversation(json: &Json) -> Result<Vec<Message>> {
    let Json::List(list) = json else { return Err(wrong("its messages are no list")) };
    list.iter().zip(1..).map(|(message, number)| said(message, number)).collect()
}

fn said(json: &Json, number: usize) -> Result<Message> {
    let Json::Object(entries) = json else { return Err(wrong(format!("message {number} is no JSON object"))) };
    let field = |key: &str| {
        let text = json.get(key).and_then(Json::text);
        text.ok_or_else(|| wrong(format!("the {key} of message {number} is no text")))
    };
    if let Some((other, _)) = entries.iter().find(|(key, _)| !["role", "content", "name"].contains(&key.as_str())) {
        return Err(wrong(format!("message {number} has {}, which no template is given", printable::name(other))));
    }
    Ok(Message::new(field("role")?, field("content")?))
}

fn string<'j>(json: &'j Json, key: &str) -> Result<&'j str> {
    json.text().ok_or_else(|| wrong(format!("its {key} is no text")))
}

fn wrong(what: impl Display) -> Error {
    Error::invalid(what.to_string(), HELP)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::thread::sleep;
    use std::time::Duration;

    use expect_test::expect;
    use tacit_io::Gguf;

    use super::*;

    /// A tokenizer of the golden ones.
    fn tokenizers() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden/tokenizers")
    }

    /// A folder of a test with the tokenizer of a GGUF file, `data.jsonl` and a template of chats.
    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new(tokenizer: &str, template: &str) -> Self {
            let folder = Self(tempfile::tempdir().expect("makes a folder"));
            let file = Gguf::open(tokenizers().join(tokenizer)).expect("opens");
            fs::write(folder.0.path().join("tokenizer.json"), file.tokenizer().expect("is there").line())
                .expect("writes");
            let config = serde_json::json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template});
            fs::write(folder.0.path().join("tokenizer_config.json"), config.to_string()).expect("writes");
            folder
        }

        /// What a reader makes of these lines.
        fn read(&self, lines: &str) -> Result<(Reader, Vec<Sample>)> {
            let file = self.0.path().join("data.jsonl");
            fs::write(&file, lines).expect("writes");
            let mut reader = Reader::new(Source::find(self.0.path())?, None, 100_000)?;
            let samples = reader.read(&file)?;
            Ok((reader, samples))
        }
    }

    /// The text of a sample's tokens, and of those that are learned, control tokens too.
    fn texts(reader: &Reader, sample: &Sample) -> [String; 2] {
        let decoded = |tokens: &[u32]| reader.tokenizer.decode(tokens, false).expect("decodes");
        let learned = sample.tokens.iter().zip(&sample.learned).filter(|(_, learned)| **learned);
        [decoded(&sample.tokens), decoded(&learned.map(|(token, _)| *token).collect::<Vec<_>>())]
    }

    /// With every tokenizer, in many scripts.
    #[test]
    fn completions_are_learned_and_prompts_are_not() -> Result<()> {
        let prompts = ["The quick brown fox", "Привет, мир!\n", "こんにちは", "  two spaces ", ""];
        let completions = [" jumps over", "Съешь ещё", "世界。", "end\n", "aaaa \n"];
        for name in ["spm", "spm_unspaced", "default", "llama-bpe", "smaug-bpe", "qwen2", "gpt-2", "smollm", "tekken"] {
            let file = tokenizers().join(format!("{name}.gguf"));
            let mut reader = Reader::new(Source::find(&file)?, Some(7), 100_000)?;
            let end = reader.end.expect("a token ends texts");
            for prompt in prompts {
                for completion in completions {
                    let line = serde_json::json!({"prompt": prompt, "completion": completion}).to_string();
                    let samples = reader.samples(&line)?;
                    let [sample] = samples.as_slice() else { panic!("{name}: {samples:?}") };
                    assert_eq!(sample.tokens.len(), sample.learned.len());
                    assert_eq!((sample.tokens.last(), sample.learned.last()), (Some(&end), Some(&true)), "{name}");
                    assert_eq!(sample.tokens.iter().filter(|token| **token == end).count(), 1, "{name}");
                    let mut given = sample.clone();
                    given.tokens.pop();
                    let first = given.learned.iter().position(|learned| *learned).expect("some are learned");
                    assert!(given.learned[first..].iter().all(|learned| *learned), "{name}: {sample:?}");
                    // A token of both is given, and what is learned is the end of the completion, but for a part of a character.
                    let [_, learned] = texts(&reader, &given);
                    let learned = learned.trim_start_matches([' ', '\n', char::REPLACEMENT_CHARACTER]);
                    assert!(completion.ends_with(learned), "{name}: {learned:?} of {completion:?} behind {prompt:?}");
                    assert!(completion.len() - learned.len() <= 4, "{name}: {learned:?} of {completion:?}");
                }
            }
        }
        Ok(())
    }

    const CONVERSATION: &str = r#"{"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}, {"role": "assistant", "content": "four"}]}"#;

    #[test]
    fn answers_are_learned_and_what_users_say_is_not() -> Result<()> {
        const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% if m.role == 'assistant' %}</s>{% endif %}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";
        let folder = Folder::new("spm_unspaced.gguf", TEMPLATE);
        let (reader, samples) = folder.read(CONVERSATION)?;
        let [sample] = samples.as_slice() else { panic!("{samples:?}") };
        expect![[r#"
            [
                "<s>[user] one[assistant] two</s>[user] three[assistant] four</s>",
                "two</s>four</s>",
            ]
        "#]]
        .assert_debug_eq(&texts(&reader, sample));
        Ok(())
    }

    /// As templates of models that think leave out what they thought before.
    #[test]
    fn answers_that_are_written_otherwise_later_become_samples_of_their_own() -> Result<()> {
        const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}] {% if loop.last and m.role == 'assistant' %}last {% endif %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";
        let folder = Folder::new("spm_unspaced.gguf", TEMPLATE);
        let (reader, samples) = folder.read(CONVERSATION)?;
        let found: Vec<_> = samples.iter().map(|sample| texts(&reader, sample)).collect();
        expect![[r#"
            [
                [
                    "[user] one\n[assistant] last two",
                    "last two",
                ],
                [
                    "[user] one\n[assistant] two\n[user] three\n[assistant] last four",
                    "last four",
                ],
            ]
        "#]]
        .assert_debug_eq(&found);
        Ok(())
    }

    #[test]
    fn conversations_that_no_template_serves_may_be_prompts_and_completions() {
        let said = |config: serde_json::Value| {
            let folder = Folder::new("spm_unspaced.gguf", "");
            fs::write(folder.0.path().join("tokenizer_config.json"), config.to_string()).expect("writes");
            let error = folder.read(CONVERSATION).err().expect("is refused").to_string();
            error.replace(folder.0.path().to_str().expect("text"), "FOLDER") + "\n"
        };
        let of = |template: &str| serde_json::json!({"chat_template": template});
        let forgets = "{% for m in messages %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}";
        expect![[r"
            FOLDER/data.jsonl:1: FOLDER/tokenizer_config.json: chat_template: there is no template
            help: give prompts and completions in place of messages
            FOLDER/data.jsonl:1: FOLDER/tokenizer_config.json: chat_template: the template cannot be rendered: invalid operation: no (in <string>:1)
            help: give prompts and completions in place of messages, or leave the system message out
            FOLDER/data.jsonl:1: the template does not write an answer behind what asks for it
            help: give prompts and completions in place of messages
        "]]
        .assert_eq(
            &[
                said(serde_json::json!({})),
                said(of("{{ raise_exception('no') }}")),
                said(of(forgets)),
            ]
            .concat(),
        );
    }

    /// As that of Llama 3.1, which writes the date.
    #[test]
    fn a_template_that_tells_the_time_makes_the_same_samples_later() -> Result<()> {
        const TEMPLATE: &str = "{{ strftime_now('%s') }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";
        let folder = Folder::new("spm_unspaced.gguf", TEMPLATE);
        let (_, first) = folder.read(CONVERSATION)?;
        sleep(Duration::from_millis(1100));
        let mut reader = Reader::new(Source::find(folder.0.path())?, None, 100_000)?;
        assert_eq!(reader.read(&folder.0.path().join("data.jsonl"))?, first);
        Ok(())
    }

    #[test]
    fn the_mark_of_editors_before_a_file_is_no_part_of_its_first_row() -> Result<()> {
        let folder = Folder::new("spm.gguf", "");
        let (_, plain) = folder.read("{\"text\": \"well\"}\n")?;
        let (_, marked) = folder.read("\u{feff}{\"text\": \"well\"}\n")?;
        assert_eq!((marked.len(), &marked), (1, &plain));
        Ok(())
    }

    #[test]
    fn lines_that_are_no_rows_are_named_by_file_and_line() {
        let folder = Folder::new("spm.gguf", "{{ raise_exception('not for this') }}");
        let mut said = String::new();
        for line in [
            "{\"text\": ",
            "[1]",
            "{\"txt\": \"a\"}",
            "{\"text\": 1}",
            "{\"prompt\": \"a\"}",
            "{\"completion\": \"a\"}",
            "{\"text\": \"a\", \"prompt\": \"b\"}",
            "{\"messages\": {}}",
            "{\"messages\": [1]}",
            "{\"messages\": [{\"role\": \"user\"}]}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"tool_calls\": []}]}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
            "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}",
        ] {
            let error = folder.read(&format!("{{\"text\": \"well\"}}\n\n{line}\n")).err().expect("is refused");
            said.extend([error.clause().as_str(), "\n"]);
        }
        expect![[r#"
            FOLDER/data.jsonl:3: it is no JSON: EOF while parsing a value at line 1 column 9
            FOLDER/data.jsonl:3: it is no JSON object
            FOLDER/data.jsonl:3: it has neither text, nor a prompt and a completion, nor messages
            FOLDER/data.jsonl:3: its text is no text
            FOLDER/data.jsonl:3: it has a prompt and no completion
            FOLDER/data.jsonl:3: it has a completion and no prompt
            FOLDER/data.jsonl:3: it has more than one of text, prompt and completion, and messages
            FOLDER/data.jsonl:3: its messages are no list
            FOLDER/data.jsonl:3: message 1 is no JSON object
            FOLDER/data.jsonl:3: the content of message 1 is no text
            FOLDER/data.jsonl:3: message 1 has tool_calls, which no template is given
            FOLDER/data.jsonl:3: no message is of the role assistant
            FOLDER/data.jsonl:3: FOLDER/tokenizer_config.json: chat_template: the template cannot be rendered: invalid operation: not for this (in <string>:1)
        "#]].assert_eq(&said.replace(folder.0.path().to_str().expect("text"), "FOLDER"));
        let twice = folder.read("{\"text\": \"a\", \"text\": \"b\"}\n").err().expect("is refused").clause();
        assert!(twice.contains("data.jsonl:1: the key \"text\" is there twice at line 1 "), "{twice}");
    }
}
