"""Requests in, answers out: the JSON shapes of /generate, /v1/completions and /v1/chat/completions.

Each `read_*` turns a request body into Work items; each `*_answer` and `*_chunk` turns what came out into JSON.
Raises BadRequest, whose text goes to the client.
"""

import json
import time
import uuid

from .answers import END

# Tokens that the chat template puts around one message: two marks, the role's newline and the last one.
_AROUND = 4
_LOGPROB = -0.125


class BadRequest(Exception):  # noqa: N818 - named after the HTTP status
    """A request that cannot be served."""


class Work:
    """One prompt to answer: its `text` (what the rules look at), `tokens`, sampling `params`, whether it `thinks`."""

    def __init__(self, text, tokens, params, thinks=False):
        self.text = text
        self.tokens = tokens
        self.params = params
        self.thinks = thinks


def _prompts(value, what):
    """A prompt as text or token ids, or a list of either, as (text, tokens) pairs."""
    if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int)):
        value = [value]
    if not isinstance(value, list) or not value:
        raise BadRequest(f"{what}: expected text, a list of token ids, or a list of either")
    found = []
    for item in value:
        if isinstance(item, str):
            found.append((item, max(1, len(item.encode()))))
        else:
            found.append((bytes(i for i in item if i < 256).decode(errors="replace"), len(item)))
    return found


def read_generate(body, settings, context):
    """Work for a body of /generate."""
    key = "text" if body.get("text") is not None else "input_ids"
    if body.get(key) is None:
        raise BadRequest("Either text, input_ids or input_embeds should be provided.")
    params = body.get("sampling_params") or {}
    return [_fit(Work(text, tokens, dict(params)), context) for text, tokens in _prompts(body[key], key)]


def read_completion(body, settings, context):
    """Work for a body of /v1/completions."""
    if body.get("prompt") is None:
        raise BadRequest("prompt: Field required")
    params = _params(body, 16)
    return [_fit(Work(text, tokens, dict(params)), context) for text, tokens in _prompts(body["prompt"], "prompt")]


def read_chat(body, settings, context):
    """Work for a body of /v1/chat/completions; the model thinks unless the request switches that off."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: Field required")
    tokens, last = len("assistant") + 2, ""
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "\n".join(part.get("text", "") for part in content)
        tokens += len(content.encode()) + len(message.get("role", "")) + _AROUND
        if message.get("role") == "user":
            last = content
    thinks = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True) is not False
    params = _params(body, context - tokens)
    return [_fit(Work(last, tokens, params, thinks), context)]


def _params(body, limit):
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    return {
        "max_new_tokens": limit if asked is None else asked,
        "ignore_eos": body.get("ignore_eos"),
        "stop": body.get("stop"),
    }


def _fit(work, context):
    if work.tokens >= context:
        raise BadRequest(
            f"The input ({work.tokens} tokens) is longer than the model's context length ({context} tokens)."
        )
    asked = work.params.get("max_new_tokens")
    if asked is not None and (not isinstance(asked, int) or asked < 1):
        raise BadRequest(f"max_new_tokens must be at least 1, got {asked}.")
    if asked is not None:
        work.params["max_new_tokens"] = min(asked, context - work.tokens)
    return work


def split_thought(text, settings):
    """(reasoning, content) of a chat answer: what a reasoning parser sets apart, None where there is none."""
    if not settings["reasoning_parser"]:
        return None, text
    thought, end, content = text.partition("</think>")
    return (thought.strip(), content.strip() or None) if end else (text.strip(), None)


def usage(works, outputs):
    """Token counts of a whole request."""
    prompt = sum(work.tokens for work in works)
    completion = sum(len(output.ids) for output in outputs)
    thought = sum(len(o.text.partition("</think>")[0].encode()) for w, o in zip(works, outputs) if w.thinks)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "reasoning_tokens": thought,
    }


def _finish(output):
    matched = output.finish.get("matched")
    return {"finish_reason": output.finish["type"], "matched_stop": matched}


def generate_answer(work, output, name, body, settings, seconds, text=None):
    """One answer of /generate; with `text` an unfinished one, as far as it has come."""
    ids = output.ids if text is None else list(text.encode())
    meta = {
        "id": name,
        "finish_reason": output.finish if text is None else None,
        "prompt_tokens": work.tokens,
        "weight_version": settings["weight_version"],
        "total_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "e2e_latency": round(seconds, 6),
    }
    if body.get("return_logprob"):
        meta["input_token_logprobs"] = []
        meta["output_token_logprobs"] = [[_LOGPROB, token, None] for token in ids]
    answer = {"output_ids": ids, "meta_info": meta}
    if not settings["skip_tokenizer_init"]:
        answer = {"text": output.text if text is None else text, **answer}
    return answer


def _envelope(kind, prefix, body, settings, choices):
    return {
        "id": prefix + uuid.uuid4().hex,
        "object": kind,
        "created": int(time.time()),
        "model": body.get("model") or settings["served_model_name"],
        "choices": choices,
    }


def completion_answer(works, outputs, body, settings):
    """The whole answer of /v1/completions."""
    choices = []
    for at, output in enumerate(outputs):
        logprobs = None
        if body.get("logprobs") is not None:
            tokens = ["<|im_end|>" if i == END else chr(i) for i in output.ids]
            logprobs = {
                "text_offset": list(range(len(tokens))),
                "token_logprobs": [_LOGPROB] * len(tokens),
                "tokens": tokens,
                "top_logprobs": [],
            }
        choices.append({"index": at, "text": output.text, "logprobs": logprobs, **_finish(output)})
    answer = _envelope("text_completion", "", body, settings, choices)
    return {**answer, "usage": usage(works, outputs), "metadata": {"weight_version": settings["weight_version"]}}


def completion_chunk(body, settings, text=None, output=None):
    """One piece of a streamed /v1/completions: a text, or the end."""
    end = _finish(output) if output else {"finish_reason": None, "matched_stop": None}
    choice = {"index": 0, "text": text or "", "logprobs": None, **end}
    return _envelope("text_completion", "", body, settings, [choice])


def chat_answer(works, outputs, body, settings):
    """The whole answer of /v1/chat/completions."""
    output = outputs[0]
    thought, content = split_thought(output.text, settings) if works[0].thinks else (None, output.text)
    logprobs = None
    if body.get("logprobs"):
        tokens = ["<|im_end|>" if i == END else chr(i) for i in output.ids]
        logprobs = {"content": [{"token": t, "logprob": _LOGPROB, "bytes": None, "top_logprobs": []} for t in tokens]}
    message = {"role": "assistant", "content": content, "reasoning_content": thought, "tool_calls": None}
    choice = {"index": 0, "message": message, "logprobs": logprobs, **_finish(output)}
    if body.get("tools") and settings["tool_call_parser"] and str(content).startswith("<tool_call>"):
        call = json.loads(content.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        tool_call = {"id": f"call_{uuid.uuid4().hex[:24]}", "index": 0, "type": "function", "function": function}
        message.update(content=None, tool_calls=[tool_call])
        choice["finish_reason"] = "tool_calls"
    answer = _envelope("chat.completion", "", body, settings, [choice])
    return {**answer, "usage": usage(works, outputs), "metadata": {"weight_version": settings["weight_version"]}}


def chat_chunk(body, settings, delta, output=None):
    """One piece of a streamed /v1/chat/completions: a delta, or the end."""
    end = _finish(output) if output else {"finish_reason": None, "matched_stop": None}
    full = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None, **delta}
    choice = {"index": 0, "delta": full, "logprobs": None, **end}
    return _envelope("chat.completion.chunk", "", body, settings, [choice])
