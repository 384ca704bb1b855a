"""Experiments as data: what is run, on what, and what it says of the paper's claims."""
