"""`make fleet-study`: twenty similar reactors that learn alone, together and federated, scored on them and on new ones.

    python -m benchmarks.fleet_study                       # every cell that has no result yet
    python -m benchmarks.fleet_study fedavg pooled --episodes 20
    python -m benchmarks.fleet_study --table               # docs/federated-learning.md's table from the results alone

A cell is a way to learn and a number of logged episodes at each site. Sites are reactors whose k0 and UA lie within 3 %
of the nominal ones; each logs episodes of the medium behaviour. Policies are scored by rollouts on the twenty sites
that learned and on twenty others, on the plant's scale. Each finished cell is a file in benchmarks/results/fleet, and a
study that is stopped goes on with the cells that are missing.
"""
