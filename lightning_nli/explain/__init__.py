"""LIME: which words of which text an answer rests on."""
