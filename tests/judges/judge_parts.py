"""How the tests of the judges make models, tokens and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = "the cat sat on a mat and saw how a dog ran to the old house by the sea where it rains all day long"


def save_model(folder: Path, kind: str) -> Path:
    """A randomly initialised GPT-2 or Llama with a byte-level BPE, as `save_pretrained` writes them."""
    import torch
    import transformers
    from tokenizers import ByteLevelBPETokenizer

    engine = ByteLevelBPETokenizer()
    special = ["<|endoftext|>"] if kind == "gpt2" else []
    engine.train_from_iterator([WORDS] * 4, vocab_size=300, min_frequency=1, special_tokens=special)
    engine.save(str(folder / "raw.json"))
    named: dict[str, Any] = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"} if special else {}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "raw.json"), **named)
    torch.manual_seed(3)
    size = len(tokenizer)
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=size, n_positions=32, n_embd=32, n_layer=2, n_head=2)
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            vocab_size=size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
        )
        model = transformers.LlamaForCausalLM(config)
    for weight in model.parameters():  # far from uniform predictions, or every token would cost the same
        weight.data.mul_(4.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def story_tokens(home: Path, layout: str) -> Path:
    from tsdfm.corpus.run import run as make_corpus
    from tsdfm.corpus.settings import CorpusSettings
    from tsdfm.tokens.run import run as make_tokens
    from tsdfm.tokens.settings import TokensSettings

    made = make_corpus(CorpusSettings(out=home / "corpus", name="world:small", limit=600, valid=0.1))
    settings: Any = TokensSettings(
        corpus=made, out=home / "tokens", vocab_size=380, length=56, layout=layout, workers=1, train_documents=300
    )
    return make_tokens(settings)


def train_judge(tokens: Path, out: Path, steps: int = 60, **more: Any) -> Path:
    from tsdfm.judges.settings import JudgeLoop, JudgeOptim, JudgeTrainSettings
    from tsdfm.judges.train import run
    from tsdfm.nn.settings import NetSettings

    loop = JudgeLoop(steps=steps, batch=32, eval_every=max(1, steps // 2), save_every=0, log_every=20)
    net = NetSettings(width=64, depth=2, heads=2, dropout=0.0)
    optim = JudgeOptim(lr=5e-3, warmup=5, ema=0.9)
    return run(JudgeTrainSettings(tokens=tokens, out=out, net=net, loop=loop, optim=optim, eval_rows=32, **more))
