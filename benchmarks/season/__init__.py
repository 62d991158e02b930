"""`make season`: ninety days of a plant that fouls and is cleaned, each day's logs through monitoring and a retraining.

    python -m benchmarks.season                                 # 90 days; goes on where an earlier run stopped
    python -m benchmarks.season --days 3 --out /tmp/season.json    # fewer, kept elsewhere

The plant is the reactor: its heat exchanger is clean for thirty days, fouls by 0.15 % a day for forty, and is cleaned.
Its own controller as found runs it, with the noise of behaviour `pid`, and each evening's log is held against what the
champion learned from (`neorl monitor`); then a policy is retrained on the last ten days. Servers, ledger, witness,
registry, gates, certificates and approvals are the real ones; the budgets of training and evaluation are small. After a
promotion the new champion and the one before it run the next day's plant in the same episodes, and where the new one is
surely worse, or violates a limit, it is rolled back.

Keeps benchmarks/results/season.json and makes docs/studies/season.md of it.
"""
