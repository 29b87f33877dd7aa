"""Raw text by datatrove, the field's engine for text at web scale, into shards that a training takes without a copy.

    pip install 'datatrove[io,processing]'
    python examples/web_scale.py folder-of-jsonl

Without a folder it takes stories. TSDFM_SLURM=PARTITION sends the tasks to Slurm as an array; run it again when they
are done. TSDFM_EXAMPLE_STEPS sets the number of batches that are read.
"""

import os
import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from tsdfm.corpus import CorpusSettings
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.source import read
from tsdfm.tokens import Loader, TokenRows, TokensSettings
from tsdfm.tokens.bpe import GPT2_END, train_bpe
from tsdfm.tokens.run import run as make_tokens


def main(texts: Path, steps: int, out: Path = Path("runs/examples/web")) -> None:
    ours = train_bpe((document.text for _, document in zip(range(20_000), read(texts), strict=False)), 1024)
    ours.save(out / "tokenizer")
    theirs = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(ours.vocab)}, merges=ours.merges))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.save(str(out / "datatrove.json"))
    write = DocumentTokenizer(str(out / "shards"), str(out / "datatrove.json"), eos_token=GPT2_END, seed=0)
    pipeline, logs = [JsonlReader(str(texts), glob_pattern="*.jsonl*"), write], str(out / "logs")
    if partition := os.environ.get("TSDFM_SLURM"):
        SlurmPipelineExecutor(pipeline, tasks=512, time="4:00:00", partition=partition, logging_dir=logs).run()
    else:
        LocalPipelineExecutor(pipeline, tasks=4, workers=2, logging_dir=logs).run()
    shards = TokensSettings(shards=out / "shards", tokenizer_files=out, length=64, out=out / "tokens")
    rows = TokenRows(make_tokens(shards))
    batches = [Loader(rows, batch=8, seed=0).at(step) for step in range(steps)]
    print(f"{len(rows)} rows; the last batch begins with: {rows.tokenizer.decode(batches[-1].tokens[0])[:60]!r}")


if __name__ == "__main__":
    stories = CorpusSettings(name="world:small", limit=2000, valid=0, out=Path("runs/examples/stories"))
    texts = Path(sys.argv[1]) if len(sys.argv) > 1 else make_corpus(stories)
    main(texts, steps=int(os.environ.get("TSDFM_EXAMPLE_STEPS", 100)))
