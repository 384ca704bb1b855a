"""The agent of Section 5 and Appendix F: replay, networks, schedules, and the learner and runtimes that drive them.

Its modules need JAX and Equinox; nothing here is loaded by `import offtrace`.
"""
