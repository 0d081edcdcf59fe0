"""Writes small tokenizers as GGUF files, one of each kind, and the tokens that llama.cpp gives texts in many scripts. `tokenizers/spm.gguf` is a whole model.

Two vocabularies are trained on the texts: one of SentencePiece's kind, with scores and bytes, and one of GPT-2's bytes, which
each pre-tokenizer splits texts for. `tokenizers/ids.json` has what llama.cpp makes of them.

pip install gguf==0.19.0 numpy tokenizers==0.22.2 cyllama==0.2.18
"""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
from cyllama.llama import llama_cpp as llama
from gguf import GGUFWriter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent / "tokenizers"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
PRE = ["default", "llama-bpe", "smaug-bpe", "qwen2", "gpt-2", "smollm", "tekken"]

TEXTS = [
    "Hello, world!", "The quick brown fox jumps over the lazy dog.", "I'm sure you'd say it's theirs, we'LL see; they'Ve.",
    "  two spaces  and\ttabs\t\t end  ", "line\nbreaks\n\nand\r\nmore\n\n\n\nend\n", "", " ", "\n", "a",
    "1234567890 12 345 6789 3.14159 1,000,000", "x=y+z; if (a<=b) { return c[0]->d; } // comment",
    "def f(x):\n    return x ** 2  # square\n\n\nprint(f(3))", "https://example.org/path?query=1&b=two#frag",
    "user@example.com (555) 123-4567", "ÄÖÜ äöü ß straße größer Übermut", "Ça va très bien, où êtes-vous déjà allé ?",
    "El niño comió piñas; ¿qué pasó? ¡Olé!", "São Paulo é uma cidade à beira da ação", "Zażółć gęślą jaźń",
    "Příliš žluťoučký kůň úpěl ďábelské ódy", "Az árvíztűrő tükörfúrógép", "Þetta er íslenska með ð og þ",
    "İstanbul'da ışık ve gölge", "Tiếng Việt có nhiều dấu thanh điệu", "Привет, мир! Съешь ещё этих мягких булок",
    "Україна є їхньою ґрунтом", "Ελληνικά γράμματα και τόνοι ἀρχαῖα", "שלום עולם, זה טקסט בעברית", "שָׁלוֹם",
    "مرحبا بالعالم، هذا نص عربي ٠١٢٣٤٥", "سلام دنیا، این فارسی است", "اردو میں لکھا ہوا متن", "नमस्ते दुनिया, यह हिन्दी है १२३",
    "বাংলা ভাষায় লেখা পাঠ্য", "தமிழ் எழுத்துக்கள் அழகானவை", "తెలుగు అక్షరాలు", "ไทยไม่มีช่องว่างระหว่างคำ", "ພາສາລາວ",
    "မြန်မာဘာသာ", "ខ្មែរ", "ქართული ენა", "Հայերեն լեզու", "አማርኛ ቋንቋ", "你好，世界！這是中文文本。", "简体中文没有空格",
    "こんにちは世界。カタカナとひらがなと漢字", "안녕하세요 세계, 한국어 텍스트입니다", "🙂 emoji 👩‍👩‍👧‍👦 family 🇩🇪 flag ❤️",
    "mixed العربية and English и русский 中文", "zero\u200bwidth\u00a0nbsp\u3000ideographic", "combining e\u0301 vs é, ﬁ ligature",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒎𝒂𝒕𝒉 𐍈 gothic", "control \x01 \x7f bytes", "½ ⅓ ² ³ Ⅷ ① numbers", "“quotes” ‘single’ – dash — em… ellipsis",
    "<s> is no control here <x>", "before<|im_end|>after <|im_start|>user\nhi<|im_end|>", "<special> and <user> tokens <user><user>x",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ababababababa abababab", "CamelCaseWords andSNAKE_CASE_Words ALLCAPS MiXeD",
]


def trained(pre, alphabet, texts, size):
    tokenizer = Tokenizer(models.BPE())
    if pre:
        tokenizer.pre_tokenizer = pre
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    words = sorted(model["vocab"], key=model["vocab"].get)
    return words, [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]


def written(file, model, words, kinds, extra, whole):
    """A file of words, and of a model of one layer for them, if it is to be whole."""
    writer = GGUFWriter(file, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    extra(writer)
    if whole:
        writer.add_block_count(1)
        writer.add_context_length(512)
        writer.add_embedding_length(8)
        writer.add_feed_forward_length(8)
        writer.add_head_count(1)
        writer.add_layer_norm_rms_eps(1e-6)
        generator = np.random.default_rng(0)
        layer = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
        for name, rows in [("token_embd", len(words)), *((f"blk.0.{name}", 8) for name in layer)]:
            writer.add_tensor(f"{name}.weight", generator.normal(size=(rows, 8)).astype(np.float16))
        for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"]:
            writer.add_tensor(f"{name}.weight", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(name, model, words, kinds, extra):
    written(HERE / f"{name}.gguf", model, words, kinds, extra, name == "spm")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "whole.gguf"
        written(file, model, words, kinds, extra, True)
        # It has to outlive its vocabulary.
        loaded = llama.LlamaModel(str(file), llama.LlamaModelParams())
        vocabulary = loaded.get_vocab()
        ids = [list(vocabulary.tokenize(text, True, True)) for text in TEXTS]
        ends = [id for id in range(len(words)) if vocabulary.is_eog(id)]
        loaded.close()
    return {"ids": ids, "ends": ends}


def of_scores(writer, spaced):
    writer.add_token_scores([0.0 if kind == BYTE else -1000.0 if kind != NORMAL else -float(id) for id, kind in enumerate(spm_kinds)])
    writer.add_add_space_prefix(spaced)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_eos_token(not spaced)
    writer.add_chat_template("{{ bos_token }}{% for message in messages %}<user>{{ message.content }}{% endfor %}")


def of_merges(writer, pre):
    writer.add_tokenizer_pre(pre)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(words.index("<|begin|>"))
    writer.add_eos_token_id(words.index("<|endoftext|>"))
    writer.add_eot_token_id(words.index("<|eot|>"))
    if pre == "qwen2":
        writer.add_add_bos_token(False)
    if pre == "gpt-2":
        writer.add_add_bos_token(True)


llama.disable_logging()
shutil.rmtree(HERE, ignore_errors=True)
HERE.mkdir()
files = {}

# Some scripts are left to the bytes.
pieces, _ = trained(None, [], [text.replace(" ", "\u2581") for text in TEXTS[:40]], 620)
own = ["<unk>", "<s>", "</s>", "<special>", "<|im_end|>", "<|im_start|>", "<user>", "\n\n", "    "]
spm = own + [f"<0x{byte:02X}>" for byte in range(256)]
spm_kinds = [UNKNOWN] + [CONTROL] * 5 + [USER_DEFINED] * 3 + [BYTE] * 256
for piece in sorted(pieces, key=lambda piece: (len(piece) == 1, pieces.index(piece))):
    if piece not in spm:
        spm.append(piece)
        spm_kinds.append(NORMAL)
files["spm"] = write("spm", "llama", spm, spm_kinds, lambda writer: of_scores(writer, True))
files["spm_unspaced"] = write("spm_unspaced", "llama", spm, spm_kinds, lambda writer: of_scores(writer, False))

pre = pre_tokenizers.Sequence([
    pre_tokenizers.Split(" ", "merged_with_next"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
])
words, merges = trained(pre, pre_tokenizers.ByteLevel.alphabet(), TEXTS, 520)
kinds = [NORMAL] * len(words)
for word, kind in [("<|begin|>", CONTROL), ("<|endoftext|>", CONTROL), ("<|im_end|>", CONTROL), ("<|im_start|>", CONTROL),
                   ("<|eot|>", CONTROL), ("<user>", USER_DEFINED)]:
    words.append(word)
    kinds.append(kind)
for name in PRE:
    files[name] = write(name, "gpt2", words, kinds, lambda writer: of_merges(writer, name))
lines = ",\n".join(json.dumps(text) for text in TEXTS)
entries = ",\n".join(f"{json.dumps(name)}: {json.dumps(found, separators=(',', ':'))}" for name, found in files.items())
(HERE / "ids.json").write_text(f'{{"texts": [\n{lines}\n],\n"files": {{\n{entries}\n}}}}\n')
print(len(TEXTS), {name: sum(map(len, found["ids"])) for name, found in files.items()}, {n: f["ends"] for n, f in files.items()})
