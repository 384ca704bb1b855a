"""The agent of Section 5 and Appendix F.

    spec         TrainSpec: everything that decides a run
    settings     from specs to a program and its numbers
    network, replay, schedules, learner      the parts of the agent
    program, population      the compiled program, for one agent and for a population
    synchronous, host      the two runtimes, behind the interface in runtimes
    ticks, training     one tick and its records; a whole run with its checkpoints
    runs, checkpoints, states, disk, telemetry      what is saved, and how
    policy, playing, selection      a trained agent: loaded, one of many, evaluated
    hints        a message for runs that learn nothing
    memory, compile_cache      the check of free memory, the cache of compiled programs

The modules need JAX and Equinox; `import offtrace` loads none of them.
"""
