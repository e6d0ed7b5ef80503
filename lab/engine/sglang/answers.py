"""A rule engine in place of a model: the same prompt always gets the same text, and a few questions the right one.

One token is one byte of UTF-8; the end of text is a token of its own.
"""

import itertools
import json
import random
import re

END = 258
_FILLER = "the quick brown fox jumps over the lazy dog and then rests in the warm sun"
_SUM = re.compile(r"(-?\d+)\s*(\+|-|\*|x|plus|minus|times)\s*(-?\d+)")
_REPEAT = re.compile(r"[Rr]epeat:\s*(.+)")
THOUGHT = "The question is short, so the answer is too."


class Output:
    """What came out: `text`, `ids` (one a token), `finish` as the engine reports it."""

    def __init__(self, text, ids, finish):
        self.text = text
        self.ids = ids
        self.finish = finish


def answer(prompt):
    """The text that follows a prompt."""
    repeat = _REPEAT.findall(prompt)
    if repeat:
        return repeat[-1].strip()
    question = _SUM.findall(prompt)
    if question:
        left, sign, right = question[-1]
        left, right = int(left), int(right)
        if sign in ("+", "plus"):
            return str(left + right)
        return str(left - right if sign in ("-", "minus") else left * right)
    weather = re.search(r"weather in (\w+)", prompt)
    if weather:
        call = {"name": "get_weather", "arguments": {"city": weather[1]}}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    if re.search(r"capital( city)? of France", prompt):
        return "Paris"
    return _FILLER + "."


def noise(prompt):
    """What uninitialised weights answer: text without sense."""
    source = random.Random(prompt)
    return "".join(source.choice("!#%&()*;<>?@[]^_`{|}~ÄßÿŸ") for _ in range(60))


def complete(prompt, limit, ignore_end=False, stop=(), garbage=False, thinking=False):
    """An Output of at most `limit` tokens.

    With `ignore_end` it goes on to the limit. `stop`: texts before which it is cut. `thinking`: a thought comes first.
    """
    text = noise(prompt) if garbage else answer(prompt)
    if thinking:
        text = f"{THOUGHT}\n</think>\n\n{text}"
    if ignore_end:
        words = itertools.cycle(_FILLER.split())
        while len(text.encode()) < limit:
            text += " " + next(words)
    cuts = [(text.find(mark), mark) for mark in stop if mark and mark in text]
    if cuts:
        at, mark = min(cuts)
        data = text[:at].encode()
        if len(data) < limit:
            return Output(text[:at], list(data) or [END], {"type": "stop", "matched": mark})
        text = text[:at]
    data = text.encode()
    if len(data) < limit:
        return Output(text, [*data, END], {"type": "stop", "matched": END})
    # A character cut in two does not show.
    return Output(data[:limit].decode(errors="ignore"), list(data[:limit]), {"type": "length", "length": limit})


def pieces(text):
    """The text in the pieces in which it is streamed: a word each."""
    return re.findall(r"\s*\S+|\s+$", text)
