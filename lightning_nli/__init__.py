"""lightning-nli: train and compare natural language inference models on legal texts."""

__version__ = "0.1.0"
