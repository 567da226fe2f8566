"""``python -m tests.chaos.jobs.plain_worker REDIS_URL QUEUE ANSWERS THREADS ENGINE...``: a plain worker loop.

Each thread takes a message off a Redis list, asks an engine and pushes the answer to another list, as common
reference architectures have it. A message that was taken and not answered is nowhere else.
"""

import json
import sys
import threading
from typing import Any

from redis import Redis

from tests.support.processes import fetch


def work(redis_url: str, queue: str, answers: str, engine: str) -> None:
    client: Any = Redis.from_url(redis_url)
    while True:
        _, message = client.blpop([queue])
        asked = json.loads(message)
        answer = fetch(f"{engine}/v1/chat/completions", body=asked["body"], timeout_s=60.0)
        client.rpush(answers, json.dumps({"id": asked["id"], "type": "result", "body": answer}))


def main() -> None:
    redis_url, queue, answers, threads, *engines = sys.argv[1:]
    running = [
        threading.Thread(target=work, args=(redis_url, queue, answers, engines[number % len(engines)]))
        for number in range(int(threads))
    ]
    for thread in running:
        thread.start()
    sys.stdout.write("working\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
