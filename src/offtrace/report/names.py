"""What algorithms are called for people, in charts and tables alike."""

NAMES = {
    "retrace": "Retrace(λ)",
    "tree_backup": "TB(λ)",
    "q_star": "Q*(λ)",
    "q_lambda": "Q(λ)",
    "dqn": "DQN",
    "one_step": "one-step",
    "importance_sampling": "IS(λ)",
    "recursive_retrace": "recursive Retrace(λ)",
    "truncated_is": "truncated IS(λ)",
    "rbis": "RBIS(λ)",
    "watkins": "Watkins's Q(λ)",
    "soft_watkins": "soft Watkins's Q(λ)",
    "continuous_acer": "continuous ACER(λ)",
    "q_sigma": "Q(σ, λ)",
}


def named(algorithm: str) -> str:
    """The name itself where there is no other.

    >>> named("tree_backup"), named("mine")
    ('TB(λ)', 'mine')
    """
    return NAMES.get(algorithm, algorithm)


def counted(number: int, what: str) -> str:
    """
    >>> counted(1, "game"), counted(60, "game")
    ('1 game', '60 games')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"
