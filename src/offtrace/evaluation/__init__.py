"""Off-policy evaluation from logged data: the log, its checks, estimators, intervals and diagnostics."""
