"""The commands of `tsdfm report`: each makes one table, or a few that belong together, of runs."""

TABLES = {
    "main": "commands.by_steps:main",
    "frontier": "sweeps:frontier",
    "threshold": "commands.by_steps:threshold",
    "candidates": "commands.guided:candidates",
    "policy": "commands.guided:policy",
    "refinement": "commands.guided:refinement",
    "diversity": "commands.diversity:run",
    "prefix": "commands.prefix:run",
    "scaling": "commands.by_steps:scaling",
    "mauve": "commands.mauve:run",
    "compass": "commands.compass:run",
    "overhead": "commands.overhead:run",
    "claims": "commands.claims:run",
}
"""What a recipe may ask for, and the function that makes it; the type of its `settings` says what it takes."""
UNJUDGED = ("refinement", "diversity", "compass", "overhead", "claims")
"""Those that ask no judge."""
