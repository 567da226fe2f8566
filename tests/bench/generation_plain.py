"""``python -m tests.bench.generation_plain DIR TOKENS BATCH…``: transformers' ``generate``.

Writes a line of JSON for each batch: its size, tokens, seconds and seconds of CPU.
"""

import itertools
import json
import sys
import time
from typing import Any

from tests.bench.generation_requests import prompt_of, times_of


def main(directory: str, tokens: int, *batches: int) -> None:
    import torch

    from agent.engines.torch.lean_imports import import_transformers

    import_transformers()  # as our engine does, without what neither uses
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    network: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory, padding_side="left")
    numbers = itertools.count()
    for batch in batches:
        for turns in (1, times_of(batch)):
            began_s, cpu_s, count = time.monotonic(), time.process_time(), 0
            for _ in range(turns):
                messages = [[{"role": "user", "content": prompt_of(next(numbers))}] for _ in range(batch)]
                given = tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True
                )
                with torch.inference_mode():
                    found = network.generate(
                        **given, do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens
                    )
                tokenizer.batch_decode(found[:, given["input_ids"].size(1) :])
                count += batch * tokens
            took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        row = {"batch": batch, "tokens": count, "s": took_s, "cpu_s": cpu_s}
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
