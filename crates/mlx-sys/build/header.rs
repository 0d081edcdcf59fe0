//! Reads a header of `mlx-c`, whose C is plain: handles, enumerations, tables of functions and functions.
//!
//! What is not understood is an error, so nothing is left out in silence.

use std::fmt::Write as _;

/// Types that `src/numbers.rs` defines, together with the functions of the half-precision ones.
const NUMBERS: &[&str] = &["mlx_complex64_t", "float16_t", "bfloat16_t"];

/// Parameters of functions whose `char` mlx-rs 0.33.0 takes for an `i8`. It is one on x86 and on Apple's machines, and a
/// `u8` for Linux on Arm, where mlx-rs would not compile.
const SIGNED: &[(&str, &str)] = &[("mlx_pad", "mode")];

/// The Rust declarations of a header; an error is the declaration that is not understood.
pub(crate) fn rust(header: &str) -> Result<String, String> {
    let mut out = String::new();
    for declaration in declarations(&plain(header)) {
        let tokens = tokens(&declaration);
        let defined = matches!(tokens[..], ["typedef", .., name] if NUMBERS.contains(&name));
        // A static variable of a header is one of each file that includes it.
        if defined || tokens[0] == "static" || tokens.iter().any(|token| NUMBERS[1..].contains(token)) {
            continue;
        }
        item(&tokens).map(|text| out.push_str(&text)).ok_or(declaration)?;
    }
    Ok(out)
}

/// The header without comments, lines of the preprocessor and the frame of `extern "C"`.
fn plain(header: &str) -> String {
    let mut text = String::new();
    let mut rest = header;
    while let Some((code, comment)) = rest.split_once("/*") {
        text.push_str(code);
        rest = comment.split_once("*/").map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    let text = text.replace("\\\n", " ");
    let code = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let code = code.map(|line| line.split_once("//").map_or(line, |(code, _)| code)).collect::<Vec<_>>().join("\n");
    match code.split_once("extern \"C\" {").and_then(|(before, rest)| Some((before, rest.rsplit_once('}')?))) {
        Some((before, (inner, after))) => [before, inner, after].concat(),
        None => code,
    }
}

/// What stands between the semicolons outside of braces.
fn declarations(text: &str) -> Vec<String> {
    let mut depth = 0;
    let ends = |character| {
        depth += i32::from(character == '{') - i32::from(character == '}');
        character == ';' && depth == 0
    };
    let words = text.split(ends).map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    words.filter(|declaration| !declaration.is_empty()).collect()
}

fn tokens(declaration: &str) -> Vec<&str> {
    let in_name = |character: char| character.is_alphanumeric() || character == '_' || character == '.';
    let mut tokens = Vec::new();
    let mut rest = declaration.trim();
    while let Some(first) = rest.chars().next() {
        let length = if in_name(first) { rest.find(|c| !in_name(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

fn item(tokens: &[&str]) -> Option<String> {
    match tokens {
        // Announced here and defined in another header.
        ["typedef", "struct", _, _] => Some(String::new()),
        ["typedef", "struct", tag, "{", fields @ .., "}", name] => {
            let mut members = String::new();
            for field in fields.split(|token| *token == ";").filter(|field| !field.is_empty()) {
                let (name, ty) = variable(field)?;
                let _ = writeln!(members, "    pub {}: {ty},", name?);
            }
            Some(format!(
                "#[repr(C)]\n#[derive(Debug, Copy, Clone)]\npub struct {tag} {{\n{members}}}\npub type {name} = {tag};\n"
            ))
        }
        ["typedef", "enum", tag, "{", variants @ .., "}", name] => {
            let mut text = format!("pub type {tag} = ::std::os::raw::c_uint;\npub use self::{tag} as {name};\n");
            for (value, variant) in
                variants.split(|token| *token == ",").filter(|variant| !variant.is_empty()).enumerate()
            {
                let [variant] = variant else { return None };
                let _ = writeln!(text, "pub const {tag}_{variant}: {tag} = {value};");
            }
            Some(text)
        }
        ["typedef", rest @ ..] => {
            let (name, ty) = variable(rest)?;
            Some(format!("pub type {} = {ty};\n", name?))
        }
        [before @ .., ")"] => {
            let open = before.iter().position(|token| *token == "(")?;
            let (name, result) = variable(&before[..open])?;
            let signed = |own: &str| SIGNED.contains(&(before[open - 1], own));
            let (parameters, result) = (parameters(&before[open + 1..], signed)?, returned(&result));
            Some(format!("unsafe extern \"C\" {{\n    pub fn {}({parameters}){result};\n}}\n", name?))
        }
        _ => None,
    }
}

/// The name, if there is one, and the Rust type of a field, parameter or result.
fn variable<'a>(tokens: &[&'a str]) -> Option<(Option<String>, String)> {
    let name = |name: &'a str| format!("r#{name}");
    if let Some(open) = tokens.iter().position(|token| *token == "(") {
        let ["(", "*", function, ")", "(", taken @ .., ")"] = &tokens[open..] else { return None };
        let (None, result) = variable(&tokens[..open])? else { return None };
        let (taken, result) = (parameters(taken, |_| false)?, returned(&result));
        return Some((Some(name(function)), format!("::std::option::Option<unsafe extern \"C\" fn({taken}){result}>")));
    }
    let (constant, rest) = match tokens {
        ["const", rest @ ..] => (true, rest),
        _ => (false, tokens),
    };
    let (base, rest) = rest.split_first()?;
    let stars = rest.iter().take_while(|token| **token == "*").count();
    let mut ty = primitive(base)?.to_owned();
    for star in 0..stars {
        ty = format!("*{} {ty}", if star == 0 && constant { "const" } else { "mut" });
    }
    match &rest[stars..] {
        [] => Some((None, ty)),
        [own] if own.starts_with(|first: char| first.is_alphabetic() || first == '_') => Some((Some(name(own)), ty)),
        _ => None,
    }
}

/// The parameters of a function; where `signed` says so of a name, its `char` is an `i8`.
fn parameters(tokens: &[&str], signed: impl Fn(&str) -> bool) -> Option<String> {
    if matches!(tokens, [] | ["void"]) {
        return Some(String::new());
    }
    let mut depth = 0;
    let ends = |token: &&str| {
        depth += i32::from(*token == "(") - i32::from(*token == ")");
        *token == "," && depth == 0
    };
    let parameter = |tokens: &[&str]| match tokens {
        ["..."] => Some("...".to_owned()),
        ["const", "char", "*", own] if signed(own) => Some(format!("r#{own}: *const i8")),
        tokens => variable(tokens).map(|(name, ty)| format!("{}: {ty}", name.as_deref().unwrap_or("_"))),
    };
    Some(tokens.split(ends).map(parameter).collect::<Option<Vec<_>>>()?.join(", "))
}

fn returned(ty: &str) -> String {
    if ty.ends_with("::c_void") && !ty.starts_with('*') { String::new() } else { format!(" -> {ty}") }
}

fn primitive(name: &str) -> Option<&str> {
    Some(match name {
        "void" => "::std::os::raw::c_void",
        "char" => "::std::os::raw::c_char",
        "int" => "::std::os::raw::c_int",
        "bool" | "FILE" => name,
        "float" => "f32",
        "double" => "f64",
        "size_t" | "uintptr_t" => "usize",
        "int8_t" => "i8",
        "int16_t" => "i16",
        "int32_t" => "i32",
        "int64_t" => "i64",
        "uint8_t" => "u8",
        "uint16_t" => "u16",
        "uint32_t" => "u32",
        "uint64_t" => "u64",
        handle if handle.starts_with("mlx_") => handle,
        _ => return None,
    })
}
