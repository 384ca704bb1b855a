"""Inputs that many tests share: windows of steps, reports of ticks, files of results."""
