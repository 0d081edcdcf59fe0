"""Writes the PEFT goldens: adapters of a tiny model as PEFT saves them, and the weights that it merges.

pip install torch==2.5.1 peft==0.17.1 transformers==4.55.0 safetensors==0.8.0 numpy==2.4.6
"""

import shutil
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

HERE = Path(__file__).parent / "peft"
shutil.rmtree(HERE, ignore_errors=True)


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(16, 24)
        self.q_proj = torch.nn.Linear(24, 32, bias=False)
        self.v_proj = torch.nn.Linear(24, 8, bias=False)

    def forward(self, x):
        x = self.embed_tokens(x)
        return self.q_proj(x), self.v_proj(x)


def save(name, **options):
    torch.manual_seed(0)
    base = Tiny()
    weights = {k: v.clone() for k, v in base.state_dict().items()}
    model = get_peft_model(base, LoraConfig(**options))
    for path, parameter in model.named_parameters():
        if "lora_" in path and "magnitude" not in path:
            parameter.data = torch.randn_like(parameter) / 4
    model.save_pretrained(HERE / name)
    (HERE / name / "README.md").unlink()
    merged = {k: v for k, v in model.merge_and_unload().state_dict().items()}
    changed = {k: v for k, v in merged.items() if not torch.equal(v, weights[k])}
    save_file(changed, HERE / f"{name}_expected.safetensors")
    save_file(weights, HERE / "base.safetensors")


save("lora", r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "embed_tokens"], rank_pattern={"v_proj": 2})
save("rslora", r=4, lora_alpha=8, use_rslora=True, target_modules=["q_proj"], alpha_pattern={"q_proj": 3})
save("dora", r=4, lora_alpha=6, use_dora=True, target_modules=["q_proj", "v_proj"])
