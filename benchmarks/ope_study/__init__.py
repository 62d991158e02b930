"""`make ope-study`: compare off-policy evaluation with true values, on nine plants and three logged controllers.

    python -m benchmarks.ope_study                                   # every cell without a result
    python -m benchmarks.ope_study chemical_reactor --behaviours medium
    python -m benchmarks.ope_study --page                            # docs/studies/ope.md from the kept results
    python -m benchmarks.ope_study --peers LOGS                      # logs for benchmarks/peers/fqe_d3rlpy.py

A cell is a plant and a logged controller with 50,000 generated rows. It trains at least twenty policies of very
different quality on the training episodes and estimates their values from the held-out episodes. The true values are
discounted returns of rollouts, which no estimator reads. Cells are kept in benchmarks/results/ope with the commit of
the sources. Started again, the command runs only the missing cells.

The estimator was developed on chemical_reactor, hvac_control and water_treatment with seed 0. The other six plants use
seeds that were not used before.
"""
