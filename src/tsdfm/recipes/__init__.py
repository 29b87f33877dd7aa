"""Recipes: a run as a small file of settings. Shipped ones are found by name, others by path."""

from tsdfm.recipes.recipe import Entry, Recipe, known, read_recipe, shipped

__all__ = ["Entry", "Recipe", "known", "read_recipe", "shipped"]
