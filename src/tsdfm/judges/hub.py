"""Causal language models of transformers as judges: by hub name, from a local folder, or from a GGUF file."""

from __future__ import annotations

import hashlib
import importlib
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsdfm.engine.distributed import pick_device
from tsdfm.engine.precision import use_bf16
from tsdfm.errors import UserError
from tsdfm.judges.base import fingerprint
from tsdfm.judges.causal import CausalJudge, Encoded
from tsdfm.store.files import file_sha256
from tsdfm.store.hub import from_cache, out_of_reach
from tsdfm.tokens.tokenizer import utf8

END_OF_TEXT = "<|endoftext|>"
UNBOUNDED = 1 << 20  # what a tokenizer says when it does not know its model's context
INSTEAD = "give a folder or a .gguf file"
LONGEST = 2048  # context where neither the model nor the tokenizer names one


@dataclass(frozen=True)
class HubReader:
    """A transformers model and its tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        place: torch.device = self.model.device
        return place

    @property
    def vocab(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Texts as tokens. A special token spelled in a text is read as that token, as by the tokenizer itself."""
        if not texts:
            return []
        for text in texts:
            utf8(text)  # what is no Unicode is said in one line
        made = self.tokenizer(
            list(texts), add_special_tokens=False, return_offsets_mapping=True, verbose=False, truncation=False
        )
        pairs = zip(made["input_ids"], made["offset_mapping"], strict=True)
        return [Encoded(list(ids), [int(end) for _, end in offsets]) for ids, offsets in pairs]

    def logits(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return out

    def hidden(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        return out


def hub_judge(
    name: str, device: str = "auto", precision: str = "auto", batch: int | None = None, *, gguf: Path | None = None
) -> CausalJudge:
    """A judge by hub name or folder; with `gguf`, from that file (`name` is then only its label)."""
    place = pick_device(device)
    bf16 = use_bf16(precision, place)
    model, tokenizer = _load(name, gguf)
    label = gguf.stem if gguf is not None else (Path(name).resolve().name if Path(name).is_dir() else name)
    # the content is hashed as it was stored, so that a judge has one fingerprint at every precision
    content = file_sha256(gguf) if gguf is not None else _content(model, tokenizer)
    model = model.to(device=place, dtype=torch.bfloat16 if bf16 else torch.float32).eval().requires_grad_(False)
    reader = HubReader(model, tokenizer)
    return CausalJudge(
        reader=reader,
        name=label,
        fingerprint=fingerprint("gguf" if gguf is not None else "hub", label, content),
        precision="bf16" if bf16 else "fp32",
        context=_context(model.config, tokenizer),
        start=_start(tokenizer, reader.vocab),
        batch=batch,
    )


def _load(name: str, gguf: Path | None) -> tuple[Any, Any]:
    """The model in the type it is stored in, on the CPU, and its tokenizer: from this machine if it is there."""
    here = gguf is not None or Path(name).is_dir()
    known = here or isinstance(_extra("huggingface_hub").try_to_load_from_cache(name, "config.json"), str)
    if not known and (reason := out_of_reach()):
        raise UserError(f"could not load the judge {name}: it is not on this machine, and {reason}: {INSTEAD}")
    transformers = _extra("transformers")
    if gguf is not None:  # transformers reads such files by way of both
        _extra("gguf"), _extra("accelerate")
    place = str(gguf.parent) if gguf is not None else name
    more = {"gguf_file": gguf.name} if gguf is not None else {}

    def read(local: bool) -> tuple[Any, Any]:
        with from_cache() if local else nullcontext():
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, local_files_only=local, **more)
            loader = transformers.AutoModelForCausalLM
            return loader.from_pretrained(place, dtype="auto", local_files_only=local, **more), tokenizer

    with _quietly():
        try:
            try:
                model, tokenizer = read(known)
            except Exception:
                if here or not known or out_of_reach():
                    raise
                model, tokenizer = read(False)  # some of its files were in the cache, not all
        except Exception as problem:  # a name that does not exist, a damaged file, the network: a class for each
            first = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
            raise UserError(
                f"could not load the judge {gguf or name} ({type(problem).__name__}: {first}): check the name and the "
                f"network, or {INSTEAD}"
            ) from problem
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"the judge {name} has no fast tokenizer, which is needed to know where tokens end")
    return model, tokenizer


def _extra(name: str) -> Any:
    """A module of the extra, or one line that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"this judge needs {name}: pip install 'tsdfm[judges]'") from None


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the progress bars and notes of the loader: ours tell what matters."""
    logging = _extra("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # the bar of GGUF files heeds no setting
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _start(tokenizer: Any, vocab: int) -> int | None:
    """The token before every text: end-of-text if the judge has one, else its begin, else its end.

    A chat model's begin token opens a message, and text after it is not what it was trained to continue; end-of-text is
    what stood between the documents of its pre-training.
    """
    known = tokenizer.get_vocab().get(END_OF_TEXT)
    for token in (known, tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None and token < vocab:  # some tokenizers name tokens the model has no row for
            return int(token)
    return None


def _context(config: Any, tokenizer: Any) -> int:
    """Tokens the judge can read at once."""
    places = [getattr(config, key, None) for key in ("max_position_embeddings", "n_positions", "n_ctx")]
    places.append(tokenizer.model_max_length if tokenizer.model_max_length < UNBOUNDED else None)
    return next((int(p) for p in places if p), LONGEST)


def _content(model: Any, tokenizer: Any) -> str:
    """sha256 of the weights, by name, and of the tokenizer."""
    whole = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode())
    for key, tensor in sorted(model.state_dict().items()):
        whole.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        whole.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()
