#!/usr/bin/env bash
# `tacit generate` and `tacit chat` on a tiny checkpoint that mlx-lm made and a tokenizer of bytes: the tokens that mlx-lm gives,
# as text with characters of several of them; draws that a seed repeats; stops, chat templates, drafts and prompt caches, which
# change nothing; and errors in place of panics.
#
# Half a minute once the program is built.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cargo build --quiet --locked --workspace --bin tacit

python3 - "${CARGO_TARGET_DIR:-target}/debug/tacit" <<'PYTHON'
import json, shutil, struct, subprocess, sys, tempfile
from pathlib import Path

program = Path(sys.argv[1]).resolve()
golden = Path("tests/decoder/golden")
scratch = tempfile.TemporaryDirectory()
model, draft = Path(scratch.name) / "model", Path(scratch.name) / "draft"
shutil.copytree(golden / "affine/llama", model)
shutil.copytree(golden / "float/llama", draft)


def stored(file, name):
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + length])[name]
    assert entry["dtype"] == "U32", entry
    begin, end = entry["data_offsets"]
    return list(struct.unpack(f"<{(end - begin) // 4}I", data[8 + length + begin : 8 + length + end]))


prompt = stored(golden / "affine/llama.safetensors", "prompt")
tokens = stored(golden / "affine/llama.safetensors", "tokens")

# Token i is byte i, but two that follow each other are a character of two bytes.
bytes_of = {token: token for token in range(127)}
first, second = next((a, b) for a, b in zip(tokens, tokens[1:]) if a != b and not {a, b} & set(prompt))
bytes_of[first], bytes_of[second] = "ä".encode()


def text_of(ids):
    return bytes(bytes_of[token] for token in ids).decode("utf-8", errors="replace")


# The names that byte-level vocabularies give to bytes.
shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
names = {byte: chr(byte) for byte in shown}
names |= {byte: chr(256 + place) for place, byte in enumerate(byte for byte in range(256) if byte not in names)}
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
tokenizer = {
    "version": "1.0",
    "added_tokens": [
        {"id": 127, "content": "<end>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    ],
    "pre_tokenizer": level,
    "decoder": level,
    "model": {"type": "BPE", "vocab": {names[byte]: token for token, byte in bytes_of.items()}, "merges": []},
}
template = """{%- set ns = namespace(count=0) %}
{% for message in messages %}
    {% if message.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}
    {% if tools is defined and tools %}{{ tools | tojson }}{% endif %}
{{ message.role }}: {{ message['content'].strip() }}{{ eos_token if message.role == 'assistant' else '' }}
    {% set ns.count = ns.count + 1 %}
{% endfor %}
{% if add_generation_prompt %}model {{ ns.count }}:{% endif %}"""
for folder in (model, draft):
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}, "chat_template": template}))


def run(*options, text=text_of(prompt), count=200, folder=model):
    name = "chat" if "--chat" in options else "generate"
    options = [str(option) for option in options if option != "--chat"]
    command = [program, name, folder, "--prompt", "-", "--max-tokens", str(count), *options]
    return subprocess.run(command, input=text.encode(), capture_output=True, timeout=300)


def generated(*options, **given):
    done = run(*options, **given)
    assert done.returncode == 0, done
    assert b"tokens" in done.stderr and b" MB" in done.stderr, done
    made = done.stdout.decode()
    assert made.endswith("\n"), done
    return made[:-1]


def refused(*options, **given):
    done = run(*options, **given)
    assert done.returncode == 1 and not done.stdout, done
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 2 and lines[0].startswith("error: ") and lines[1].startswith("help: "), lines


greedy = text_of(tokens)
assert "ä" in greedy
assert generated() == greedy
assert generated("--draft", draft) == greedy
assert generated("--draft", draft, "--draft-tokens", 7, count=60) == text_of(tokens[:60])

assert generated("--lookup") == greedy
assert generated("--lookup", "--draft-tokens", 7, "--match-tokens", 1, count=60) == text_of(tokens[:60])

# One file has the model and its tokenizer.
whole, alone = golden / "tokenizers/spm.gguf", Path(scratch.name) / "alone"
alone.mkdir()
shutil.copy(whole, alone / "any.gguf")
made = generated(text="Hello, world!", count=20, folder=whole)
assert made == generated(text="Hello, world!", count=20, folder=alone) == generated("--draft", whole, text="Hello, world!", count=20, folder=alone)
refused("--draft", draft, folder=whole)

sampled = ["--temp", 0.9, "--top-k", 40, "--top-p", 0.95, "--min-p", 0.01, "--repetition-penalty", 1.1]
once = generated(*sampled, "--seed", 3, count=60)
assert once == generated(*sampled, "--seed", 3, count=60) != generated(*sampled, "--seed", 4, count=60)
# One draw may end a text early.
assert max(len(generated("--draft", draft, *sampled, "--seed", seed, count=60)) for seed in range(3)) > 30

stop = greedy[30:33]
assert generated("--stop", "never", "--stop", stop) == greedy[: greedy.index(stop)]

said = "system: be brief\nuser: hello\nmodel 2:"
chat = generated("--chat", "--system", " be brief", text="hello ", count=30)
assert chat == generated(text=said, count=30) != generated(text="hello ", count=30)

# A conversation goes on with what is new alone: as if all that was said before had been given at once.
def conversation(folder, count):
    file = Path(scratch.name) / f"chat-{folder.name}-{count}.safetensors"
    chat = ["--chat", "--prompt-cache", file]
    first = generated(*chat, "--system", " be brief", text="hello ", count=count, folder=folder)
    if "\ufffd" in first:
        return None
    whole = said + first + end_of[folder]
    for turn, question in ((4, "more"), (6, "and more")):
        made = generated(*chat, text=question, count=count, folder=folder)
        whole += f"\nuser: {question}\nmodel {turn}:"
        assert made == generated(text=whole, count=count, folder=folder), (turn, made)
        if "\ufffd" in made:
            return first
        whole += made + end_of[folder]
    refused(*chat, "--system", "be brief", text="more", folder=folder)
    return first


# The tokenizer's own end of a text counts where no generation_config.json says another, and stands in the caches already.
ended, kept = Path(scratch.name) / "ended", Path(scratch.name) / "kept"
end = next(letter for letter in chat[4:] if letter.isalpha() and letter.isascii() and letter not in said)
for folder in (ended, kept):
    shutil.copytree(model, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end, "chat_template": template}))
(kept / "generation_config.json").write_text(json.dumps({"eos_token_id": 126}))
brief = generated("--chat", "--system", " be brief", text="hello ", count=30, folder=ended)
assert brief == chat[: chat.index(end)]
assert generated("--chat", "--system", " be brief", text="hello ", count=30, folder=kept) == chat
end_of = {model: "<end>", ended: end}
assert sum(conversation(folder, count) is not None for folder in (model, ended) for count in (17, 23, 29)) >= 3

# A conversation of lines is the same, in one program.
turns = "hello \n\nmore\nand more\n"
for folder in (model, ended):
    both = ["chat", folder, "--system", " be brief", "--max-tokens", "23", "--json"]
    done = subprocess.run([program, *both], input=turns.encode(), capture_output=True, timeout=300)
    assert done.returncode == 0, done
    whole, answers = said, done.stdout.decode().splitlines()
    assert len(answers) == 3, done
    for turn, line in enumerate(answers):
        answer = json.loads(line)
        assert answer["ended"] in ("stop", "length") and len(answer["tokens"]) <= 23, answer
        assert answer["text"] == generated(text=whole, count=23, folder=folder), (turn, answer)
        if "\ufffd" in answer["text"]:
            break
        whole += answer["text"] + end_of[folder] + f"\nuser: {['more', 'and more', ''][turn]}\nmodel {4 + 2 * turn}:"
    spoken = subprocess.run([program, *both[:-1]], input=turns.encode(), capture_output=True, timeout=300)
    assert spoken.stdout.decode() == "".join(json.loads(line)["text"] + "\n" for line in done.stdout.decode().splitlines()), spoken
    drafted = subprocess.run([program, *both[:-1], "--draft", draft], input=turns.encode(), capture_output=True, timeout=300)
    assert drafted.stdout == spoken.stdout and b"accepted" in drafted.stderr, drafted
    looked_up = subprocess.run([program, *both[:-1], "--lookup", "--match-tokens", "1"], input=turns.encode(), capture_output=True, timeout=300)
    assert looked_up.stdout == spoken.stdout and b"accepted" in looked_up.stderr, looked_up

# Caches that another program filled hold the beginning of what the user says.
file = Path(scratch.name) / "begun.safetensors"
assert generated("--prompt-cache", file, text="user: he", count=1) is not None
begun = generated("--chat", "--prompt-cache", file, text="lo", count=20)
one = generated(text="user: he", count=1)
assert "\ufffd" in one or begun == generated(text=f"user: he{one}lo\nmodel 1:", count=20)

# What templates ask for, as transformers gives it.
asks = Path(scratch.name) / "asks"
shutil.copytree(model, asks)


def asked(template, folder=asks):
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


asked("{{ {'b': [1, '<&'], 'a': none, 'c': true} | tojson }}:{{ 'day' if strftime_now('%d').isdigit() else 'none' }}:{{ [2, {}] | tojson(indent=2) }}")
expected = '{"b": [1, "<&"], "a": null, "c": true}:day:[\n  2,\n  {}\n]'
assert generated("--chat", count=20, folder=asks) == generated(text=expected, count=20)

# It goes on from a file where it ended: here after `cut` tokens, of which the next is given.
cut = next(n for n in range(20, 199) if max(bytes_of[token] for token in tokens[n - 1 : n + 2]) < 128)
cache = Path(scratch.name) / "cache.safetensors"
assert generated("--prompt-cache", cache, count=cut) == text_of(tokens[:cut])
rest = generated("--prompt-cache", cache, text=text_of(tokens[cut : cut + 1]), count=199 - cut)
assert rest == text_of(tokens[cut + 1 :])

# Keys and values of eight bits are drafted, written and gone on with as floats are.
packed = ["--kv", "int8:8"]
assert generated(*packed, count=40)
assert generated(*packed, "--draft", draft, count=40)
cache = Path(scratch.name) / "packed.safetensors"
assert generated(*packed, "--prompt-cache", cache, count=10)
assert generated(*packed, "--prompt-cache", cache, text=text_of(tokens[cut : cut + 1]), count=10)

assert generated("--weights", "affine:8:32", count=20, folder=draft)

refused(text="")
refused("--chat", folder=golden / "affine/llama")
refused("--draft", draft, "--draft-tokens", 0)
# Templates that make more than there is memory for, or ask for what is not there.
for wrong in (
    "{% set all = namespace(x='x') %}{% for i in range(60) %}{% set all.x = all.x ~ all.x %}{% endfor %}{{ all.x }}",
    "{{ strftime_now('%Q%!') }}",
    "{{ messages | tojson(sort=true) }}",
):
    asked(wrong)
    refused("--chat", folder=asks)
PYTHON
