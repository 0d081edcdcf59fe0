//! A program that is measured beside ours.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A program that takes steps when it is asked to, in the same rounds as ours.
///
/// It reads a line with the name of a case and the number of its steps, and answers with the seconds of one, or with a dash if
/// it does not know the name.
pub struct Beside {
    process: Child,
    asked: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Beside {
    /// Starts the program that `--beside=COMMAND` among the arguments names: a program and its arguments, between spaces.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub fn given() -> io::Result<Option<Self>> {
        std::env::args().find_map(|argument| Some(Self::start(argument.strip_prefix("--beside=")?))).transpose()
    }

    fn start(command: &str) -> io::Result<Self> {
        let mut words = command.split_whitespace();
        let program = words.next().unwrap_or_default();
        let process = Command::new(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = process.map_err(|error| io::Error::other(format!("{command:?} does not run: {error}")))?;
        let (Some(asked), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            unreachable!("both are piped");
        };
        Ok(Self { process, asked, answers: BufReader::new(answers) })
    }

    /// The seconds of a step, if the program takes such steps.
    ///
    /// # Errors
    ///
    /// It has ended, or answers something else.
    pub fn seconds(&mut self, case: &str, steps: usize) -> io::Result<Option<f64>> {
        writeln!(self.asked, "{case} {steps}").and_then(|()| self.asked.flush())?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        match answer.trim() {
            "-" => Ok(None),
            answer => answer.parse().map(Some).map_err(|_| {
                io::Error::other(format!("the program beside answers {answer:?} to {case:?}; see what it printed"))
            }),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::Beside;

    #[test]
    fn a_program_answers_for_the_cases_that_it_knows() {
        let script = "while read case steps; do [ $case = known ] && echo 0.$steps || echo $case; done";
        let path = std::env::temp_dir().join(format!("beside-{}", std::process::id()));
        std::fs::write(&path, script).unwrap();
        let mut beside = Beside::start(&format!("sh {}", path.display())).unwrap();
        assert_eq!(beside.seconds("known", 25).unwrap(), Some(0.25));
        assert_eq!(beside.seconds("-", 1).unwrap(), None);
        let error = beside.seconds("other", 1).unwrap_err().to_string();
        assert_eq!(error, "the program beside answers \"other\" to \"other\"; see what it printed");
        let Err(error) = Beside::start("/no/such/program --quiet") else { panic!("there is no such program") };
        expect_test::expect![[r#""/no/such/program --quiet" does not run: No such file or directory (os error 2)"#]]
            .assert_eq(&error.to_string());
        std::fs::remove_file(path).unwrap();
    }
}
