"""Turnback's daemon and its contract: everything that decides, stores, runs and turns back."""

__version__ = "0.1.0"
