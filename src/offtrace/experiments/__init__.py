"""Experiments as data: sweeps, the paper's presets, the engines that run them, and the store of their results."""
