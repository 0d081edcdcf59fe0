//! `tacit chat`: a conversation.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Args;
use tacit_core::{Error, Policy, Result};

use crate::decoding::template::{Conversation, Message, Template};
use crate::decoding::{Decoding, DecodingOptions, prompt};
use crate::output::{Failure, Output, unreadable_input};

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    decoding: DecodingOptions,
    /// The one message that is answered, in place of the lines of the standard input; - reads it from there as a whole
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// The system message of the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
}

pub(crate) fn chat(options: &Options, output: &mut Output) -> Result<ExitCode, Failure> {
    let _deny = Policy::Deny.scope();
    let (decoding, before) = Decoding::open(&options.decoding, 1)?;
    if decoding.has_begun() && options.system.is_some() {
        let help = "leave `--system` out, or begin with another file";
        return Err(Error::invalid("the conversation in the prompt cache has begun already", help).into());
    }
    let template = decoding.template()?;
    let system = options.system.as_deref();
    let mut chat = Chat { decoding, template, before, system };
    if let Some(text) = &options.prompt {
        return chat.turn(&prompt(text)?, output);
    }
    while let Some(message) = message()? {
        if !message.trim().is_empty() {
            chat.turn(&message, output)?;
        }
        if output.is_closed() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The next line of the standard input without its end, if there is one. Somebody at a terminal sees that it is their turn.
fn message() -> Result<Option<String>> {
    if io::stdin().is_terminal() {
        // Who closed the standard error does not read it.
        drop(write!(io::stderr(), "> "));
    }
    let mut line = String::new();
    if io::stdin().read_line(&mut line).map_err(|error| unreadable_input(&error))? == 0 {
        return Ok(None);
    }
    Ok(Some(line.trim_end_matches(['\n', '\r']).to_owned()))
}

struct Chat<'o> {
    decoding: Decoding<'o>,
    template: Template,
    /// What was said, where the caches hold tokens and it is known.
    before: Option<Conversation>,
    system: Option<&'o str>,
}

impl Chat<'_> {
    /// Answers a message.
    fn turn(&mut self, said: &str, output: &mut Output) -> Result<ExitCode, Failure> {
        // Of a conversation that has begun, only what is new goes to the model.
        let user = Message::new("user", said);
        let (text, mut messages) = match self.before.take() {
            Some(mut before) if self.decoding.has_begun() => {
                let text = self.template.go_on(&before, said)?;
                before.messages.push(user);
                (text, before.messages)
            }
            // Another program has begun it, and does not say with what.
            _ if self.decoding.has_begun() => (self.template.complete(said)?, vec![user]),
            _ => {
                let system = self.system.map(|system| Message::new("system", system));
                let messages: Vec<Message> = system.into_iter().chain([user]).collect();
                (self.template.render(&messages)?, messages)
            }
        };
        let tokens = self.decoding.tokens(&text, false)?;
        let answer = self.decoding.answer(&tokens, |piece| output.piece(piece))?;
        messages.push(Message::new("assistant", answer.text.clone()));
        let conversation = Conversation { messages, end: self.decoding.end(&answer) };
        let code = self.decoding.finish(&answer, Some(&conversation), output)?;
        self.before = Some(conversation);
        Ok(code)
    }
}
