"""Ask the demo's servers over HTTP, as a client on the network would. usage: demo.py STATUS_JSON"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path


def call(url: str, body: dict | None = None) -> dict:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        text = answer.read().decode()
        return json.loads(text) if text else {"status": answer.status}


def main() -> int:
    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["servers"]
    ready = 0
    for row in rows:
        base = f"http://{row['listen']}:{row['port']}"
        try:
            call(f"{base}/health")
            ready += 1
        except OSError as error:
            print(f"{row['server']} {base}: {error}")
    completion = "failed"
    if ready:
        model = call(f"{base}/v1/models")["data"][0]["id"]
        prompt = "What is 2 + 3? Answer with the number only."
        body = {"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0}
        answer = call(f"{base}/v1/completions", body)
        text = answer["choices"][0]["text"]
        print(f"POST {base}/v1/completions  {prompt!r}\n  -> {text!r}  ({answer['usage']['completion_tokens']} tokens)")
        completion = "ok" if "5" in text else "wrong"
    print(f"servers_ready={ready} completion={completion}")
    return 0 if ready == len(rows) and completion == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
