"""`make ope-study`: off-policy evaluation held against the truth, on every plant and behaviour.

    python -m benchmarks.ope_study                                   # every cell that has no result yet
    python -m benchmarks.ope_study chemical_reactor --behaviours medium
    python -m benchmarks.ope_study --table                           # docs/studies/ope.md from the results alone
    python -m benchmarks.ope_study --peers LOGS                      # what benchmarks/peers/fqe_d3rlpy.py reads

A cell is a plant and a behaviour: 50,000 generated rows, at least twenty policies of widely different worth that are
made of its training episodes, their estimates from its held-out episodes, and their discounted returns by rollouts of
the simulator, which nothing is estimated or chosen by. Each finished cell is a file in benchmarks/results/ope, and a
study that is stopped goes on with the cells that are missing.

Developed on chemical_reactor, hvac_control and water_treatment with seed 0; the other six plants took no part, and have
seeds of their own. A cell says which commit its sources are of, and none is run while they differ from it.
"""
