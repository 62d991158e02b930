"""`make study`: what the default population, selected by its own estimates, comes to on nine plants.

    python -m benchmarks.study                                    # every run that has no result yet
    python -m benchmarks.study hvac_control --behaviours medium
    python -m benchmarks.study --official                         # double_mass on NeoRL-2's own episodes, ten runs
    python -m benchmarks.study --table                            # docs/studies/retraining.md from the results alone

A cell is a plant and a behaviour. Each of its runs generates episodes, trains the default population, selects a member
by off-policy evaluation, and only then scores every member, the behaviour and the plant's own controller in the same
episodes of the simulator. A cell is a file in benchmarks/results/study that grows by a run at a time, so that a study
that is stopped goes on where it was.

Developed on chemical_reactor, hvac_control and water_treatment; the other six plants have seeds that nothing was found
on. A run says which commit its sources are of, and none is made while they differ from it.
"""
