"""What goes beyond the paper: choice in blocks, fewer candidates where they agree, a moving τ, a learning compass.

Algorithm 1 itself (`distil.navigate`, `distil.midpoint`) knows none of it.
"""
