"""What the person at the terminal reads."""

import json

from gateway.tools.quickstart.checks import QUESTION, chat_body


def how_to_go_on(base_url: str, key: str, model: str) -> str:
    """Base URL, key, a curl line and a Python snippet, ready to be copied."""
    body = json.dumps(chat_body(model) | {"stream": True})
    return f"""
base URL  {base_url}
API key   {key}
model     {model}

Who serves what:

  TRUNKLINE_KEY={key} trunkline status --gateway {base_url.removesuffix("/v1")}

With curl:

  curl -N {base_url}/chat/completions -H 'authorization: Bearer {key}' \\
    -H 'content-type: application/json' -d '{body}'

With Python (pip install openai):

  from openai import OpenAI

  client = OpenAI(base_url="{base_url}", api_key="{key}")
  question = [{{"role": "user", "content": "{QUESTION}"}}]
  for chunk in client.chat.completions.create(model="{model}", messages=question, stream=True):
      print(chunk.choices[0].delta.content or "", end="", flush=True)
"""
