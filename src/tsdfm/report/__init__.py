"""Metrics, judges, tables."""
