"""A student that learns from what becomes of its steps: rewards of whole texts, and the credit of each token."""
