"""Documents from a hub dataset, streamed by name; needs a network and the `hub` extra."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tsdfm.corpus.files import Document, document_of
from tsdfm.corpus.settings import SourceSettings
from tsdfm.corpus.wikitext import articles
from tsdfm.errors import UserError


class Alias(NamedTuple):
    dataset: str
    config: str
    cut: str


ALIASES = {
    "fineweb-edu": Alias("HuggingFaceFW/fineweb-edu", "sample-10BT", "whole"),
    "wikitext-103": Alias("Salesforce/wikitext", "wikitext-103-raw-v1", "wikitext"),
}


def read_hub(source: SourceSettings) -> Iterator[Document]:
    """The documents of `source.name`. WikiText's rows are lines, so they are first put together to articles."""
    from tsdfm.store.hub import out_of_reach

    name = str(source.name)
    try:
        import datasets
    except ImportError:
        raise UserError(f"reading {name} from the hub needs datasets: pip install 'tsdfm[hub]'") from None
    alias = ALIASES.get(name, Alias(name, source.config or "", source.cut))
    config = source.config or alias.config or None
    if not Path(alias.dataset).exists() and (reason := out_of_reach()):
        raise UserError(f"could not read {name} from the hub, as {reason}: check the network, or give files by --path")
    try:
        rows = datasets.load_dataset(alias.dataset, config, split=source.part, streaming=True)
        found = (
            document_of(row, source.field, source.prompt, f"{name}, row {number}", f"{name}:{number}")
            for number, row in enumerate(rows, 1)
        )
        if alias.cut != "wikitext":
            yield from found
            return
        for number, text in enumerate(articles(document.text for document in found), 1):
            yield Document(text, f"{name}:{number}")
    except UserError:
        raise
    except Exception as problem:  # the hub client raises dozens of kinds: network, name, configuration, permission
        first = (str(problem).strip().splitlines() or [""])[0]
        kind = type(problem).__name__
        raise UserError(f"could not read {name} from the hub ({kind}: {first}): check name and network") from problem
