"""`make ope-study`: compare off-policy evaluation with true values, on nine plants and three logged controllers.

    python -m benchmarks.ope_study                                   # every cell without a result
    python -m benchmarks.ope_study chemical_reactor --behaviours medium
    python -m benchmarks.ope_study --page                            # docs/studies/ope.md from the kept results
    python -m benchmarks.ope_study --peers LOGS                      # logs for benchmarks/peers/fqe_d3rlpy.py

A cell is a plant and a logged controller: 50,000 generated rows, at least twenty policies of very different quality
made from the training episodes, their estimates on the held-out episodes, and their discounted returns in rollouts,
which no estimator sees. Cells are kept in benchmarks/results/ope with the commit of their sources; a study that was
stopped continues with the missing cells.

The estimator was developed on chemical_reactor, hvac_control and water_treatment with seed 0. The other six plants use
fresh seeds.
"""
