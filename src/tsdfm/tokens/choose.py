"""Which tokenizer a tokens folder has: bytes, GPT-2's, one that is used again, or a BPE trained on the corpus."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from tsdfm import terminal
from tsdfm.corpus.files import Document
from tsdfm.corpus.progress import TextProgress
from tsdfm.corpus.store import count_documents, read_documents
from tsdfm.errors import UserError
from tsdfm.tokens.bpe import gpt2, train_bpe
from tsdfm.tokens.settings import TokensSettings
from tsdfm.tokens.tokenizer import ByteTokenizer, Tokenizer, is_ours, load_tokenizer


def tokenizer_for(settings: TokensSettings) -> Tokenizer:
    """The tokenizer of this folder, made once: a run that goes on after a kill takes the saved one."""
    home = settings.out / "tokenizer"
    if home.is_dir() and any(home.glob("*.json")):
        return load_tokenizer(home)
    made = given_tokenizer(settings)
    if made is None:
        made = train_bpe(_training_texts(settings), settings.vocab_size)
    elif settings.vocab_size not in (TokensSettings.vocab_size, made.vocab_size):
        terminal.say(f"note: vocab_size is for a BPE trained here; this tokenizer has {made.vocab_size:,} tokens")
    made.save(home)
    return made


def given_tokenizer(settings: TokensSettings) -> Tokenizer | None:
    """The tokenizer that the settings name; none where it is to be trained."""
    if settings.tokenizer == "byte":
        return ByteTokenizer()
    if (place := files_of(settings)) is not None and (settings.tokenizer == "bpe" or is_ours(place)):
        return load_tokenizer(place)
    return gpt2(place) if settings.tokenizer == "gpt2" else None


def files_of(settings: TokensSettings) -> Path | None:
    """Where the tokenizer's files are; `tsdfm-stories` means the tokenizer of the models of that name."""
    from tsdfm.store.bundle import find_shipped, unshipped  # loads torch

    place = settings.tokenizer_files
    shipped = None if place is None else find_shipped(place)
    if shipped and shipped[1]:
        shipped[0].member(shipped[1])  # says so if there is none of that name
    if place is not None and not shipped and not place.exists():
        raise UserError(f"no tokenizer at {place}{unshipped(place)}: give a folder that the tokens stage made")
    return shipped[0].folder / "tokenizer" if shipped else place


def _training_texts(settings: TokensSettings) -> Iterator[str]:
    """Every n-th training document and its prompt, so that the BPE sees all of a corpus and not only its beginning."""
    total = count_documents(settings.text, "train")
    stride = max(1, math.ceil(total / settings.train_documents))
    with TextProgress("learning the vocabulary", total) as progress:
        for document in read_documents(settings.text, "train", step=stride):
            progress.advance(stride, len(document.text))
            yield front(document) + document.text


def front(document: Document) -> str:
    """A document's prompt as it stands before its text: a newline, which is given too, ends it."""
    return f"{document.prompt}\n" if document.prompt else ""
