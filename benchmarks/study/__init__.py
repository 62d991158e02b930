"""`make study`: retrain with the default population on nine plants, and score the selected policies.

    python -m benchmarks.study                                    # every run without a result
    python -m benchmarks.study hvac_control --behaviours medium
    python -m benchmarks.study --official                         # double_mass on NeoRL-2's own episodes, ten runs
    python -m benchmarks.study --page                             # docs/studies/retraining.md from the kept results

A cell is a plant and a logged controller ("behaviour"). Each run generates episodes, trains the default population and
selects a member by off-policy evaluation. Afterwards all members, the logged controller and the tuned controller play
the same simulated episodes. Runs are kept in benchmarks/results/study with the commit of the sources. Started again,
the command makes only the missing runs.

Defaults were developed on chemical_reactor, hvac_control and water_treatment. The other six plants use seeds that were
not used before.
"""
