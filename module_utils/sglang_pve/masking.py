"""Hide secrets in the command lines of processes, which anybody may read on a terminal or in a log."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
# Ends of names: --api-key, --ssl-keyfile-password, HF_TOKEN; not --tokenizer-path or --max-total-tokens.
_NAME = r"[\w-]*(?:api[-_]k\w*|key|token|secrets?|pass(?!es)\w*|credentials?)"
_OPTION = re.compile(rf"(?i)--?{_NAME}")
_ASSIGNED = re.compile(rf"(?i)({_NAME}=).*", re.DOTALL)
# The same within one word, such as the script of `sh -c`; and what stands before the host of an address.
_WITHIN = re.compile(rf"(?i)((?:--?{_NAME}[= ]+)|(?:\b{_NAME}=))\S+")
_LOGIN = re.compile(r"(://)[^/@\s]+@")


def masked(words: Iterable[str]) -> list[str]:
    """The words of a command line, with *** in place of what follows a name of a secret."""
    shown: list[str] = []
    hide_next = False
    for word in words:
        if hide_next:
            shown.append(HIDDEN)
        elif _ASSIGNED.fullmatch(word):
            shown.append(_ASSIGNED.sub(rf"\1{HIDDEN}", word))
        else:
            shown.append(_LOGIN.sub(rf"\1{HIDDEN}@", _WITHIN.sub(rf"\1{HIDDEN}", word)))
        hide_next = _OPTION.fullmatch(word) is not None
    return shown
