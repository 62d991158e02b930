"""`make bench-accelerator`: large populations on this machine's accelerator, or on its CPU where it has none.

    python -m benchmarks.accelerator                         # what this device has no result of yet
    python -m benchmarks.accelerator --parts speed           # one of the two parts alone
    python -m benchmarks.accelerator --table                 # docs/studies/accelerators.md from the results alone

Two parts: gradient steps per second of populations from one member to a thousand, and whole trainings of a population
whose every member is then scored in the simulator. Each is done in float32 and, on an accelerator, in bfloat16. Results
are kept in benchmarks/results/accelerator.json, a record for each device, and written after every measurement, so that
a run that is stopped goes on where it was. What is kept of another commit is measured anew.

It needs the core and psutil, and none of the pipeline's other packages, for a machine with an accelerator often has no
more. Where the sources are a copy without a repository, `--commit` names theirs.
"""
