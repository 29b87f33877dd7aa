"""`tsdfm report …`: the paper's tables, one file each."""
