"""`make season`: ninety days of a plant that fouls and is cleaned, with monitoring and a retraining every day.

    python -m benchmarks.season                                    # 90 days; continues with the missing ones
    python -m benchmarks.season --days 3 --out /tmp/season.json    # fewer days, results elsewhere
    python -m benchmarks.season --page                             # docs/studies/season.md from the kept results

The reactor's heat exchanger is clean for thirty days, fouls by 0.15 % per day for forty days, and is cleaned. The
controller as found plays the logs. Every evening `neorl monitor` compares the day's log with the champion's training
data, then a policy is retrained on the last ten days. Servers, ledger, witness, registry, gates, certificates and
approvals are real; the budgets of training and evaluation are small. After a promotion the new and the previous
champion play the same episodes of the next day's plant; a champion that is significantly worse or violates a limit more
often is rolled back. Results are kept in benchmarks/results/season.json.
"""
