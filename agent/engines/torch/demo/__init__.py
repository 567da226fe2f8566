"""The demo model: a tiny language model that answers questions about Trunkline, with no download.

Importing this package loads nothing heavy; `README.md` beside it is the model's card.
"""

from pathlib import Path
from typing import Final

DEMO_MODEL_NAME: Final = "trunkline-demo"
"""The name clients ask for."""

DEMO_DIR: Final = Path(__file__).resolve().parent

DEMO_MODEL_DIR: Final = DEMO_DIR / "model"
"""A Hugging Face model directory: weights, configuration, tokenizer with chat template."""

DEMO_ANSWERS_FILE: Final = DEMO_DIR / "answers.json"
"""`[{"messages": [...], "answer": str, "tokens": int}]`: the exact greedy answers;
`tokens` leaves out the end token."""

DEMO_COMPLETIONS_FILE: Final = DEMO_DIR / "completions.json"
"""`[{"prompt": str, "answer": str, "tokens": int}]`: the same for raw completion prompts."""
