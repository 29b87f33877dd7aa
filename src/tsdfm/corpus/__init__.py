"""Where text comes from: files, a hub dataset, the story world; weighted mixtures; splits by document.

The stage itself is `tsdfm.corpus.run.run(CorpusSettings(...))`; nothing here needs torch until its manifest is written.
"""

from tsdfm.corpus.settings import CorpusSettings, SourceSettings
from tsdfm.corpus.store import count_documents, read_split

__all__ = ["CorpusSettings", "SourceSettings", "count_documents", "read_split"]
