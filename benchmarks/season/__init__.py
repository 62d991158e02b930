"""`make season`: simulate ninety days of a plant that fouls and is cleaned, with a retraining every day.

    python -m benchmarks.season                                    # 90 days; continues with the missing ones
    python -m benchmarks.season --days 3 --out /tmp/season.json    # fewer days, results elsewhere
    python -m benchmarks.season --page                             # docs/studies/season.md from the kept results

The reactor's heat exchanger is clean for thirty days, then loses 0.15 % of its heat transfer per day for forty days,
and is then cleaned. The controller as found makes the logs. At the end of each day `neorl monitor` compares the day's
log with the champion's training data. Then a policy is retrained on the last ten days. Servers, ledger, witness,
registry, gates, certificates and approvals are real; training and evaluation are short. After a promotion the new and
the previous champion play the same episodes of the next day. If the new champion is significantly worse or violates a
limit more often, it is rolled back. Results are kept in benchmarks/results/season.json.
"""
