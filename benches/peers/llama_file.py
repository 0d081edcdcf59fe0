"""What llama.cpp generates in a second from a GGUF file, beside `TACIT_GEMMA=FILE cargo bench --bench generate`.

    --beside="python benches/peers/llama_file.py FILE"

It needs the package xllamacpp, whose wheel has llama.cpp compiled for AVX2: on a processor with AVX-512 compile it from its sources,
or it is slower than it could be. Answers lines such as `decode/file 20` and `prompt512/file 1` with the seconds of a token and of
a prompt, as llama.cpp times them.
"""

import argparse
import statistics
import sys

import xllamacpp


class Decoder:
    """A model that continues token ids."""

    def __init__(self, path, threads):
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx = 1024
        params.n_batch = params.n_ubatch = 512
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.verbosity = -1
        self.server = xllamacpp.Server(params)

    def timings(self, prompt, count):
        answer = self.server.handle_completions({
            "prompt": list(range(1, prompt + 1)),
            "n_predict": count,
            "temperature": 0.0,
            "cache_prompt": False,
            "ignore_eos": True,
        })
        return answer["timings"]

    def decode(self, count):
        # The first token is of the prompt.
        return self.timings(8, count + 1)["predicted_per_token_ms"] / 1e3

    def prompt(self, length):
        timings = self.timings(length, 1)
        assert timings["prompt_n"] == length, timings
        return timings["prompt_ms"] / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    decoder = Decoder(given.file, given.threads)
    for line in sys.stdin:
        case, count = line.split()
        kind, _, name = case.partition("/")
        if name != "file":
            print("-", flush=True)
        elif kind == "decode":
            print(decoder.decode(int(count)), flush=True)
        elif kind.startswith("prompt"):
            length = int(kind.removeprefix("prompt"))
            print(statistics.median(decoder.prompt(length) for _ in range(int(count))), flush=True)
        else:
            print("-", flush=True)


if __name__ == "__main__":
    main()
