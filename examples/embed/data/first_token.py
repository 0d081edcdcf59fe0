"""Makes the folder first_token, a tiny encoder that is pooled as BGE is: a sentence is the output of its first token, of length 1. And
first_token.safetensors: what sentence-transformers makes of first_token.txt with it, `embeddings` f32[10,32].

Made with sentence-transformers 6.2.0, transformers 5.24.0, tokenizers 0.23.3, torch 2.15.0 and numpy 2.4.6 on a CPU:

    python3 examples/embed/data/first_token.py

The numbers of the encoder are drawn by numpy, and large enough that attention looks at few tokens: what the first token sees of the
others counts.
"""

import pathlib
import shutil
import tempfile

import numpy as np
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizer

WORDS = """
    . , ! ? : - a an and are at by cafe cat dark dog door far fast hill house in is it light moon near no not of old on over rain ran
    river run sea sing sleep slow small stone sun the there to tree under walk warm was wind with young
    ##ed ##er ##est ##ing ##ly ##n ##ning ##s
"""
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
# Fewer than there are positions, so that a sentence is cut where this says and not where the encoder ends.
MOST_TOKENS = 24

here = pathlib.Path(__file__).parent
folder = here / "first_token"


def encoder():
    """A BERT whose parameters are all drawn, those of its norms around 1 and 0."""
    model = BertModel(
        BertConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=32,
        )
    ).eval()
    draw = np.random.default_rng(7)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = 0.3 * draw.standard_normal(tuple(parameter.shape), dtype=np.float32)
            parameter.copy_(torch.from_numpy(drawn + float(name.endswith("LayerNorm.weight"))))
    return model


with tempfile.TemporaryDirectory() as scratch:
    encoder().save_pretrained(scratch)
    BertTokenizer(vocab={word: number for number, word in enumerate(VOCABULARY)}).save_pretrained(scratch)
    modules = [Transformer(scratch, max_seq_length=MOST_TOKENS), Pooling(32, "cls"), Normalize()]
    shutil.rmtree(folder, ignore_errors=True)
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)

# What the files say, and not what was in memory.
model = SentenceTransformer(str(folder), device="cpu")
sentences = here.joinpath("first_token.txt").read_text(encoding="utf-8").splitlines()
save_file({"embeddings": model.encode(sentences)}, here / "first_token.safetensors")
