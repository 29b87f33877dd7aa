"""Passing models on: a student with its teacher and its compass, packed small, with a card.

`tsdfm ship` writes a bundle; `store.bundle` reads it, for every loader. Bundles in `models/` come with the package.
"""
