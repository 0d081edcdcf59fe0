//! What only whole processes show: a training run that is killed goes on bit by bit, what memory a load takes, and that thousands
//! of values which are made one by one take few files and mappings.
//!
//! The program calls itself. It kills a run 20 times, and one of several files 6 times; both 200 times where `TACIT_SOAK` is set.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs, process};

use mlx_rs::module::Module;
use mlx_rs::optimizers::{AdamW, Optimizer};
use mlx_rs::random::RandomState;
use mlx_rs::{Array, Dtype, nn, ops, random};
use tacit_arrays::Lora;
use tacit_arrays::format::Nf4;
use tacit_core::{Policy, Value};
use tacit_files::Commit;
use tacit_files::faults::{Fault, inject};
use tacit_io::{Metadata, Resumable, Tensors, Training, Writing, load, save, write};
use tacit_nn::{Model, ParameterFilter, Parameters};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("train") => train(Path::new(&arguments[2]), arguments[3].parse()?, arguments[4].parse().ok()),
        Some("peak") => peak(Path::new(&arguments[2]), &arguments[3]),
        Some("values") => many_values(Path::new(&arguments[2])),
        _ => {
            let folder = env::temp_dir().join(format!("tacit-processes-{}", process::id()));
            fs::create_dir_all(&folder)?;
            let outcome = a_killed_run_goes_on_bit_by_bit(&folder, None)
                .and_then(|()| a_killed_run_goes_on_bit_by_bit(&folder.join("parts"), Some(SHARD)))
                .and_then(|()| a_load_takes_little_memory(&folder))
                .and_then(|()| many_values_take_few_files_and_mappings(&folder));
            fs::remove_dir_all(&folder)?;
            outcome?;
            println!("test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
            Ok(())
        }
    }
}

fn another(arguments: &[&str]) -> Outcome<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args(arguments).stdout(Stdio::piped());
    Ok(command)
}

/// The steps of a run.
const STEPS: u64 = 40;

/// Those of a run in several files, each of which goes to the disk by itself.
const SHARDED_STEPS: u64 = 8;

/// So many bytes to a file make several of a run.
const SHARD: usize = 4000;

/// What is opened of a run that is saved at this place.
fn opened(file: &Path, shard: Option<usize>) -> PathBuf {
    if shard.is_some() { file.with_extension("safetensors.index.json") } else { file.to_owned() }
}

/// Trains adapters and biases over four bits with noise, from where the file is, and saves each step.
fn train(file: &Path, steps: u64, shard: Option<usize>) -> Outcome<()> {
    let _policy = Policy::Deny.scope();
    let mut random = RandomState::with_seed(1)?;
    let mut adamw = AdamW::new(1e-2);
    let mut model = model(&mut random)?;
    let mut step = 0;
    if opened(file, shard).exists() {
        let run = Training::load(opened(file, shard))?;
        run.restore_model(&mut model)?;
        run.restore_optimizer(&mut adamw)?;
        (random, step) = (run.random()?, run.step);
    }
    while step < steps {
        let x = random::normal::<f32>(&[16, 64], None, None, &random.next_key()?)?;
        let y = x.sum_axis(-1, true)?;
        let trained = ParameterFilter::Lora.or(ParameterFilter::Dense);
        let (_, gradients) = model.value_and_grad(trained, (&x, &y), |model, (x, y): (&Array, &Array)| {
            model.forward(x)?.subtract(y)?.square()?.mean(None)
        })?;
        adamw.update(&mut model, &gradients)?;
        step += 1;
        Training::new(step)
            .with_model(&model, &ParameterFilter::All)?
            .with_optimizer(&adamw)?
            .with_random(&random)
            .with_note("rules", "*.weight = nf4:64:double")
            .save_with(file, Writing { shard, progress: None })?;
    }
    Ok(())
}

fn model(random: &mut RandomState) -> Outcome<Model<nn::Sequential>> {
    let mut linear = |outputs| -> Outcome<nn::Linear> {
        let mut linear = nn::Linear::new(64, outputs)?;
        *linear.weight = random::normal::<f32>(&[outputs, 64], None, None, &random.next_key()?)?;
        linear.bias.value = Some(ops::zeros::<f32>(&[outputs])?);
        Ok(linear)
    };
    let layers = nn::Sequential::new().append(linear(64)?).append(nn::Relu).append(linear(1)?);
    let mut model = Model::new(layers)?.quantize("*.weight", Nf4 { block: 64, double: true })?;
    let key = random.next_key()?;
    model.replace("*.weight", |_, base: Value| {
        let shape = base.aval()?.shape;
        let a = random::normal::<f32>(&[4, shape[1]], None, None, &key)?;
        Ok(Some(Lora::new(base, a, ops::zeros::<f32>(&[shape[0], 4])?, 8.0)?.into()))
    })?;
    Ok(model)
}

fn a_killed_run_goes_on_bit_by_bit(folder: &Path, shard: Option<usize>) -> Outcome<()> {
    fs::create_dir_all(folder)?;
    let (whole, killed) = (folder.join("whole.safetensors"), folder.join("killed.safetensors"));
    let part = shard.map_or("whole".to_owned(), |shard| shard.to_string());
    let (steps, kills) = if shard.is_some() { (SHARDED_STEPS, 6) } else { (STEPS, 20) };
    let run = |file: &PathBuf| another(&["train", &file.to_string_lossy(), &steps.to_string(), &part]);
    let finished = |mut child: Child| -> Outcome<()> {
        if child.wait()?.success() { Ok(()) } else { Err("the run failed".into()) }
    };
    let same = || -> Outcome<()> {
        let (whole, killed) = (contents(&opened(&whole, shard))?, contents(&opened(&killed, shard))?);
        assert_eq!(whole, killed, "the runs came to different ends");
        Ok(())
    };
    let begin = Instant::now();
    finished(run(&whole)?.spawn()?)?;
    let longest = begin.elapsed().as_micros() as u64;

    let kills = if env::var_os("TACIT_SOAK").is_some() { 200 } else { kills };
    let mut dice = Dice(u64::from(process::id()));
    let (mut before, mut interrupted, mut midway) = (0, 0, 0);
    // The runs that were killed before the first index was there. Each may have left its parts, which nothing names.
    let mut unnamed = 0;
    while interrupted < kills || midway == 0 {
        assert!(interrupted < 10 * kills, "no run was killed between its first and its last step");
        let mut child = run(&killed)?.spawn()?;
        sleep(Duration::from_micros(dice.below(longest)));
        child.kill()?;
        // One that had come to its end was not killed.
        interrupted += u64::from(!child.wait()?.success());
        let file = opened(&killed, shard);
        let step = if file.exists() { Training::load(&file)?.step } else { 0 };
        unnamed += usize::from(shard.is_some() && !file.exists());
        assert!(step >= before, "step {step} after {before}");
        midway += u64::from(step > before && step < steps);
        before = step;
        if step == steps {
            same()?;
            // It may have been killed while its files got their names, which the next save in the folder finishes.
            Commit::begin(folder)?.finish()?;
            // With its parts, which nothing names any more once the index is gone.
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().starts_with("killed") {
                    fs::remove_file(entry.path())?;
                }
            }
            (before, unnamed) = (0, 0);
        }
    }
    finished(run(&killed)?.spawn()?)?;
    same()?;
    println!("a run that was killed {interrupted} times, {midway} of them on its way, goes on bit by bit");
    // One save more clears away what the killed ones left.
    let mut last = Training::load(opened(&killed, shard))?;
    last.step += 1;
    last.save_with(&killed, Writing { shard, progress: None })?;
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let left: Vec<String> = names.collect::<Outcome<_>>()?;
    let parts = |stem: &str| left.iter().filter(|name| name.starts_with(stem)).count();
    // A first save that is killed between its files and its index leaves them: they are named as those of other programs.
    let expected = if shard.is_some() { parts("whole") } else { 1 };
    assert!(
        parts(".") == 0 && parts("killed") <= expected + unnamed * (expected - 1),
        "{left:?} after {unnamed} runs without an index"
    );
    Ok(())
}

/// Everything that a checkpoint says, by name.
fn contents(path: &Path) -> Outcome<BTreeMap<String, Vec<u8>>> {
    let tensors = Tensors::open(path)?;
    let mut said: BTreeMap<String, Vec<u8>> =
        tensors.metadata().iter().map(|(key, text)| (key.clone(), text.clone().into_bytes())).collect();
    for name in tensors.names() {
        said.insert(format!("{name} {}", tensors.aval(name)?), tensors.bytes(name)?.to_vec());
    }
    Ok(said)
}

/// Numbers that look random (Steele, Lea and Flood 2014, `SplitMix64`).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

const MEBIBYTE: usize = 1 << 20;

/// A file of one small array.
const SMALL: &str = "small.safetensors";

fn a_load_takes_little_memory(folder: &Path) -> Outcome<()> {
    if !cfg!(target_os = "linux") {
        println!("the memory of a load is only measured on Linux");
        return Ok(());
    }
    let (one, many) = (folder.join("one.safetensors"), folder.join("many.safetensors"));
    let file = 64 * MEBIBYTE;
    write(&one, vec![("w".to_owned(), ops::zeros::<f32>(&[(file / 4) as i32])?)], &Metadata::new())?;
    let layer = || -> Outcome<Value> { Ok(ops::zeros::<f32>(&[(MEBIBYTE / 4) as i32])?.into()) };
    let layers = (0..64).map(|i| Ok((format!("layers.{i}"), layer()?))).collect::<Outcome<Parameters>>()?;
    save(&many, &layers)?;
    write(folder.join(SMALL), vec![("w".to_owned(), ops::zeros::<f32>(&[4])?)], &Metadata::new())?;
    let used = |how: &str, path: &Path| -> Outcome<f64> {
        let output = another(&["peak", &path.to_string_lossy(), how])?.output()?;
        Ok(String::from_utf8(output.stdout)?.trim().parse::<f64>()? / file as f64)
    };
    let opened = used("open", &one)?;
    assert!(opened < 0.03, "opening takes {opened} of the file");
    let loaded = used("load", &many)?;
    assert!(loaded < 1.1, "loading and using everything takes {loaded} of the file");
    // Each layer is made when it is written and let go of then, in memory for one or two of them.
    let written = used("write", &folder.join("written.safetensors"))?;
    assert!(written < 0.2, "writing takes {written} of the file");
    // So it is where a layer is two arrays that are computed together, of elements of two sizes.
    let together = used("together", &folder.join("together.safetensors"))?;
    assert!(together < 0.2, "writing what is computed together takes {together} of the file");
    println!(
        "of a file of 64 MiB, opening takes {opened:.3}, loading and using {loaded:.3}, writing {written:.3} and {together:.3}"
    );
    Ok(())
}

/// Prints by how many bytes the peak of this process's memory rises.
fn peak(path: &Path, how: &str) -> Outcome<()> {
    // What MLX takes for its first op, and the pages of the program that open a file: how many a fault brings differs.
    ops::ones::<f32>(&[64])?.sum(None)?.eval()?;
    Tensors::open(path.with_file_name(SMALL))?.get("w")?.eval()?;
    let before = resident()?;
    match how {
        "open" => drop(Tensors::open(path)?.get("w")?),
        "load" => {
            // Every page of every array is used, and every array is kept.
            let values = load(path)?;
            for value in values.values() {
                assert_eq!(value.dense()?.sum(None)?.item_exact::<f32>().to_bits(), 0);
            }
            assert_eq!(values.len(), 64);
        }
        "together" => {
            let mut tensors = Vec::new();
            for i in 0..64 {
                let layer = ops::full::<f32>(&[(MEBIBYTE / 4) as i32], Array::from_int(i))?;
                let (quotient, rest) = ops::divmod(layer, Array::from_f32(3.0))?;
                tensors.push((format!("layers.{i}.codes"), quotient.as_dtype(Dtype::Uint8)?));
                tensors.push((format!("layers.{i}.scales"), rest));
            }
            write(path, tensors, &Metadata::new())?;
        }
        _ => {
            let lazy = |i: i32| -> Outcome<(String, Array)> {
                Ok((format!("layers.{i}"), ops::full::<f32>(&[(MEBIBYTE / 4) as i32], Array::from_int(i))?))
            };
            write(path, (0..64).map(lazy).collect::<Outcome<_>>()?, &Metadata::new())?;
        }
    }
    println!("{}", resident()?.saturating_sub(before));
    Ok(())
}

/// The most memory that this process has had, in bytes.
fn resident() -> Outcome<usize> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? * 1024)
}

/// Those of a model whose experts are separate.
const VALUES: usize = 4000;

fn many_values_take_few_files_and_mappings(folder: &Path) -> Outcome<()> {
    if !cfg!(target_os = "linux") {
        println!("the mappings of a process are only counted on Linux");
        return Ok(());
    }
    let file = folder.join("values.safetensors");
    let (program, file) = (env::current_exe()?, file.to_string_lossy());
    let command = format!("ulimit -n 64; exec '{}' values '{file}'", program.display());
    let output = Command::new("sh").args(["-c", &command]).output()?;
    let said = String::from_utf8(output.stdout)?;
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let taken: usize = said.trim().parse()?;
    assert!(taken < 100, "{VALUES} values take {taken} mappings");
    println!("{VALUES} values that are made one by one take {taken} mappings");
    Ok(())
}

/// Makes values one by one, and prints how many mappings are there for all of them.
fn many_values(file: &Path) -> Outcome<()> {
    // What MLX takes for its first op.
    ops::ones::<f32>(&[64])?.sum(None)?.eval()?;
    let before = mappings()?;
    // In two runs, of which the second finds what the first made. The disk itself is left out.
    let run = |count: usize| -> Outcome<(Resumable, Parameters)> {
        let mut work = Resumable::open(file, Vec::<&Path>::new())?;
        for i in 0..count {
            work.value(&i.to_string(), "as it is", || Ok((Array::from_f32(i as f32).into(), i)))?;
        }
        let values = work.values()?;
        Ok((work, values))
    };
    drop(inject(usize::MAX, Fault::Stops, || run(VALUES / 2)).0?);
    let (work, values) = inject(usize::MAX, Fault::Stops, || run(VALUES)).0?;
    assert_eq!((work.resumed(), values.len()), (VALUES / 2, VALUES));
    let taken = mappings()?.saturating_sub(before);
    work.finish(values, Writing::default())?;
    let values = load(file)?;
    for i in 0..VALUES {
        assert_eq!(values[&i.to_string()].dense()?.item_exact::<f32>().to_bits(), (i as f32).to_bits());
    }
    println!("{taken}");
    Ok(())
}

/// How many mappings this process has.
fn mappings() -> Outcome<usize> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().count())
}
