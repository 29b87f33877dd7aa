"""What is known of a text before it is written: a prefix, or a template with gaps."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.tokens.tokenizer import Tokenizer

GAP = re.compile(r"\{(\d+)\}")


def given_tokens(
    tokenizer: Tokenizer, length: int, anchor: int, prefix: str | None, infill: str | None
) -> tuple[Tensor, Tensor] | None:
    """(given [L] bool, tokens [L]) for a prefix or an infill template, after the row's anchor, or None.

    In a template, `{5}` leaves five tokens to be written: `"Mia has {2} balls."`. Braces in a plain prefix are text.
    """
    if prefix is not None and infill is not None:
        raise UserError("give either a prefix or an infill template, not both")
    parts: list[int | None] = [tokenizer.end_of_text] * anchor
    if prefix is not None:
        parts += tokenizer.encode(prefix)
    if infill is not None:
        parts += _template(tokenizer, infill, length)
    if len(parts) > length:
        what = "prefix" if prefix is not None else "infill template"
        raise UserError(f"the {what} has {len(parts) - anchor} tokens, the model writes {length - anchor}: shorten it")
    if not parts:
        return None
    held = torch.zeros(length, dtype=torch.bool)
    tokens = torch.zeros(length, dtype=torch.int64)
    for position, token in enumerate(parts):
        if token is not None:
            held[position], tokens[position] = True, token
    return held, tokens


def _template(tokenizer: Tokenizer, text: str, length: int) -> list[int | None]:
    out: list[int | None] = []
    for index, part in enumerate(GAP.split(text)):
        if index % 2 and (len(part) > 9 or int(part) > length):  # before the list is made: a typo may ask for billions
            raise UserError(f"the gap {{{part}}} is larger than the {length} tokens the model writes: shorten it")
        out += [None] * int(part) if index % 2 else tokenizer.encode(part)
    if None not in out:
        raise UserError("the infill template has no gap: write {5} where five tokens are to be filled in")
    return out
