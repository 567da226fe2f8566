"""``python -m tests.bench.generation_model DIR``: a decoder of 10 million parameters that speaks without end.

So every answer is as long as it may be. Its steps take some milliseconds on a CPU, as those of real models do
on a GPU.
"""

import sys
from pathlib import Path

from tests.support import tiny_model

SIZES = {
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
}

if __name__ == "__main__":
    tiny_model.make(Path(sys.argv[1]), sizes=SIZES)
